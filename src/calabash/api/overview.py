"""The front page in one reply: what is given out and what is used, of how many devices, and why others wait."""

from __future__ import annotations

from calabash.api.replies import Reply


class OverviewCell(Reply, kw_only=True, frozen=True):
    """One device in a few figures. Given out is the larger of memory and compute."""

    index: int
    health: str
    given_percent: int
    memory_percent: int
    busy_percent: int


class OverviewModel(Reply, kw_only=True, frozen=True):
    """The devices of one model; ``given`` and ``busy`` in devices."""

    model: str
    devices: int
    given: float
    busy: float


class OverviewCount(Reply, kw_only=True, frozen=True):
    """How many there are of something that has a name: a reason, a tenant, a state of health."""

    name: str
    count: int


class OverviewReply(Reply, kw_only=True, frozen=True):
    """Everything at a glance. Amounts in devices are sums of fractions.

    ``given``: devices given out. ``busy``: devices' worth of measured use. ``idle_held``: slices that are held and
    that nothing was computed on in the last second; ``idle_held_devices``: what they keep from others.
    ``unexplained``: waiting requests beyond those whose reason was worked out.
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
    strangers: int
    pending: int
    pending_by_reason: list[OverviewCount]
    unexplained: int
    health: list[OverviewCount]
    models: list[OverviewModel]
    tenants: list[OverviewCount]
    cells: list[OverviewCell]
