"""Message types of the simulated node: its devices with their faults, and requests for faults."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from calabash.api.replies import Reply


class SimulatedCard(Reply, kw_only=True, frozen=True):
    """Simulated device with internal counters that a real driver does not show. ``slow_percent`` 100 is full speed."""

    index: int
    uuid: str
    name: str
    memory_mib: int
    used_mib: int
    busy_s: float
    kernels: int
    lost: bool
    slow_percent: int
    ecc_double: int
    xids: list[int]


class SimulatedNode(Reply, kw_only=True, frozen=True):
    """Simulated node on which the pool runs. If the devices are real, ``name`` is empty and ``cards`` has no items."""

    name: str
    driver: str
    cards: list[SimulatedCard]


class FaultOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Fault to inject into a simulated device."""

    gpu: Annotated[str, Meta(pattern=r"^(all|[0-9]{1,4}|[A-Za-z0-9-]{5,64})\Z", description="index, UUID, or `all`")]
    fault: Annotated[
        str,
        Meta(pattern=r"^[a-z][a-z-]{0,31}\Z", description="`xid`, `ecc-double`, `lost`, `slow`, `throttle`, `recover`"),
    ]
    value: Annotated[
        str,
        Meta(
            pattern=r"^([A-Za-z0-9][A-Za-z0-9%._-]{0,31})?\Z",
            description="value of the fault, for example `79` or `300%`",
        ),
    ] = ""
