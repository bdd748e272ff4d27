"""Message types of requests about one device: drain, sharing mode and settings."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from calabash.api.requests import WAIT_S_MAX, Name


class DrainOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Request to drain a device, so that nothing new is allocated on it."""

    reason: Annotated[str, Meta(max_length=200, description="reason, shown to users")] = ""
    evict: Annotated[bool, Meta(description="end the allocations on the device")] = False
    grace_s: Annotated[float, Meta(ge=0, le=WAIT_S_MAX, description="seconds until they are ended")] = 0.0


class DeviceMode(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Sharing mode in which a device is kept."""

    mode: Annotated[
        Name, Meta(description="`mig`, `vgpu` or another mode: the only mode of the device; `auto`: follows demand")
    ]


class DeviceSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Settings of one device. A setting that is left out keeps its value."""

    replicas: (
        Annotated[
            int,
            Meta(ge=0, le=1 << 20, description="most allocations that time-slice the device; 0: as for all devices"),
        ]
        | None
    ) = None
    interval: (
        Annotated[
            str,
            Meta(
                max_length=32,
                description="length of time slices: `default`, `short`, `medium`, `long`; `auto`: as for all devices",
            ),
        ]
        | None
    ) = None
    spill: (
        Annotated[
            str,
            Meta(max_length=32, description="spilling of memory to the host: `on`, `off`; `auto`: as for all devices"),
        ]
        | None
    ) = None
