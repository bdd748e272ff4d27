"""Shifts of seconds for containers that spill memory, so that they do not page each other off the device. Pure.

Theory of operation. A container that spills has more memory than lies on the device. In time windows of milliseconds two such
containers would page each other off at every window and compute nothing. So if two or more of them want the device, one has a
*shift*: only this holder is presented to ``policy``, with the share of all of them, and the others are suspended. A
shift is so long that moving pages is a small part of it, and over a round of shifts each container has its share; the rest that
fixed shares leave stays unused. A holder that no longer wants the device ends its shift early. Before the next shift begins,
the work that the last holder has in flight may finish. Containers that do not spill alternate with the holder in time windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from calabash.model.request import AllocationId
from calabash.node.arbiter.accounts import ComputeDemand
from calabash.node.arbiter.policy import EMPTY_WINDOW, NO_ROUND, Order, is_active
from calabash.node.slots.clamped_counters import MS
from calabash.node.slots.layout import Gate, PagePolicy

LINK_BYTES_PER_S = 12_000_000_000  # throughput of a slow link to the host
PART_MOVING = 0.1  # part of a round of shifts that is spent on moving pages, in both directions
ROUND_NS_MIN, ROUND_NS_MAX = 200 * MS, 30_000 * MS
IDLE_NS = 200 * MS  # a holder without demand for so long loses its shift
NOBODY = AllocationId("~")  # holder of the unused rest; sorts after all names
DRAIN_NS = 2_000 * MS  # longest wait for the work in flight of the last holder


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """The present shift of a device: the time for which only one of the containers that spill memory may use it.

    Attributes:
        holder: the container that has the shift; ``NOBODY`` for the time that fixed shares leave unused.
        until_ns: end of the shift.
        seen_ns: when the holder last wanted the device.
        after: the last holder, if work that it launched may still run. The present holder waits for that work.
        drain_until_ns: end of that wait.
    """

    holder: AllocationId
    until_ns: int
    seen_ns: int
    after: AllocationId | None = None
    drain_until_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """Result of ``present``: the demands for the policy, and the orders of the suspended containers (``aside``)."""

    shift: Shift | None
    demands: Mapping[AllocationId, ComputeDemand]
    aside: Mapping[AllocationId, Order]


def present(shift: Shift | None, demands: Mapping[AllocationId, ComputeDemand], now_ns: int) -> Present:
    """Return the next shift, and the demands without those of containers that may spill and do not have the shift.

    Args:
        shift: the shift that the last call returned.
        demands: every container that has a slice of the device.
    """
    members = {
        name: demand
        for name, demand in demands.items()
        if demand.paged_bytes > 0 and (_wants(demand, now_ns) or _holds(shift, name, demand, now_ns))
    }
    if len(members) < 2:
        return Present(shift=None, demands=demands, aside={})
    others = any(is_active(demand, now_ns) for name, demand in demands.items() if name not in members)
    shares = _shares(members, demands)
    shift = _next(shift, members, shares, now_ns, idle_percent=0 if others else _unpromised(members))
    draining = shift.after is not None and shift.after in demands and demands[shift.after].inflight_ns > 0
    if not draining or now_ns >= shift.drain_until_ns:
        shift = replace(shift, after=None)
    stands = {name for name in members if name != shift.holder or shift.after is not None}
    orders = {
        name: Order(gate=Gate.TURN, neighbours=len(members) - 1, window=EMPTY_WINDOW, round=NO_ROUND) for name in stands
    }
    shown = {name: demand for name, demand in demands.items() if name not in stands}
    if shift.holder in shown:
        # The holder has the share of all of them, and borrows the rest of the device while no other container is active.
        percent = min(99, sum(shares.values()))
        promised = any(demand.policy is not PagePolicy.BEST_EFFORT for demand in members.values())
        policy = PagePolicy.BURST if promised else PagePolicy.BEST_EFFORT
        shown[shift.holder] = replace(shown[shift.holder], core_percent=percent, policy=policy)
    return Present(shift=shift, demands=shown, aside=orders)


def _wants(demand: ComputeDemand, now_ns: int) -> bool:
    """Return True if a container is active or has work in flight: a kernel that waits for pages takes long."""
    return is_active(demand, now_ns) or (demand.inflight_ns > 0 and now_ns - demand.demand_ns < DRAIN_NS)


def _shares(
    members: Mapping[AllocationId, ComputeDemand], demands: Mapping[AllocationId, ComputeDemand]
) -> dict[AllocationId, int]:
    """Return the share of each member in percent, at least 1.

    Best-effort members divide the percentage that is not promised to any container of the device, by their weights. If no
    member has a promised share, the weights are the shares.
    """
    promised = {name: d.core_percent for name, d in demands.items() if d.policy is not PagePolicy.BEST_EFFORT}
    weights = {name: max(1, d.core_percent) for name, d in members.items() if name not in promised}
    left, total = max(0, 100 - sum(promised.values())), sum(weights.values())
    if len(weights) == len(members):
        return weights
    return {
        name: max(1, promised[name] if name in promised else left * weights[name] // total) for name in sorted(members)
    }


def _unpromised(members: Mapping[AllocationId, ComputeDemand]) -> int:
    """Return the percentage of the device that no member may use.

    That is the rest beside the fixed shares if all members have fixed shares; otherwise it is 0.
    """
    if any(demand.policy is not PagePolicy.FIXED for demand in members.values()):
        return 0
    return max(0, 100 - sum(demand.core_percent for demand in members.values()))


def _holds(shift: Shift | None, name: AllocationId, demand: ComputeDemand, now_ns: int) -> bool:
    return shift is not None and shift.holder == name and now_ns - max(shift.seen_ns, demand.demand_ns) < IDLE_NS


def _next(
    shift: Shift | None,
    members: Mapping[AllocationId, ComputeDemand],
    shares: Mapping[AllocationId, int],
    now_ns: int,
    *,
    idle_percent: int,
) -> Shift:
    known = shift is not None and (shift.holder in members or (idle_percent > 0 and shift.holder == NOBODY))
    if shift is not None and known and now_ns < shift.until_ns:
        seen = shift.holder in members and _wants(members[shift.holder], now_ns)
        return replace(shift, seen_ns=now_ns) if seen else shift
    percent = {name: shares[name] for name in sorted(members)}
    if idle_percent:
        percent[NOBODY] = idle_percent
    last = shift.holder if shift is not None else None
    holder = next((name for name in percent if last is not None and name > last), next(iter(percent)))
    moved = 2 * sum(demand.paged_bytes for demand in members.values())
    round_ns = int(moved * 1_000_000_000 / LINK_BYTES_PER_S / PART_MOVING)
    round_ns = max(ROUND_NS_MIN, min(ROUND_NS_MAX, round_ns))
    return Shift(
        holder=holder,
        until_ns=now_ns + round_ns * percent[holder] // sum(percent.values()),
        seen_ns=now_ns,
        after=last if last != holder else None,
        drain_until_ns=now_ns + DRAIN_NS,
    )
