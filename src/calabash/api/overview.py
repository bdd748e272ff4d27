"""Message types of the overview: devices, allocated and used amounts, and reasons of waiting requests."""

from __future__ import annotations

import msgspec

from calabash.api.replies import Reply


class OverviewCell(Reply, kw_only=True, frozen=True):
    """Summary of one device. ``given_percent`` is the larger of the allocated percentages of memory and compute."""

    index: int
    health: str
    given_percent: int
    memory_percent: int
    busy_percent: int


class OverviewModel(Reply, kw_only=True, frozen=True):
    """Summary of the devices of one model. ``given`` (allocated) and ``busy`` are numbers of devices."""

    model: str
    devices: int
    given: float
    busy: float


class OverviewCount(Reply, kw_only=True, frozen=True):
    """Count by name, for example of a reason, a tenant or a health state."""

    name: str
    count: int


class OverviewReply(Reply, kw_only=True, frozen=True):
    """Overview of the pool. Amounts of devices are sums of fractions.

    ``given``: allocated devices. ``busy``: measured use in devices. ``idle_held``: slices without GPU work in the last second.
    ``idle_held_devices``: devices that these slices hold. ``strangers``: unmanaged processes. ``unexplained``: waiting requests
    whose reason was not determined.
    """

    at: float
    devices: int
    given: float
    busy: float
    memory_mib: int
    memory_given_mib: int
    memory_used_mib: int
    power_w: float
    allocations: int
    slices: int
    idle_held: int
    idle_held_devices: float
    unmanaged_processes: int = msgspec.field(name="strangers")
    pending: int
    pending_by_reason: list[OverviewCount]
    unexplained: int
    health: list[OverviewCount]
    models: list[OverviewModel]
    tenants: list[OverviewCount]
    cells: list[OverviewCell]
