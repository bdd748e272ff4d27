"""Compare the GPU time that containers were charged between two decisions with the time that the device had. Pure.

If they were charged less, the device was unused and containers pay for it. If they were charged more, the excess is
given back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from calabash.model.request import AllocationId
from calabash.node.arbiter.accounts import Account, ComputeDemand

Span = tuple[int, int]  # a time window, in absolute time


def charged_since(accounts: Mapping[AllocationId, Account], name: AllocationId, demand: ComputeDemand) -> int:
    """Return the GPU time that a container was charged by its page since the last decision."""
    account = accounts.get(name)
    if account is None:
        return 0
    return max(0, demand.used_ns - account.watched_ns - (demand.unreported_ns - account.unreported_ns))


def overcharged_time(
    excess_ns: int, charged_ns: Mapping[AllocationId, int], demands: Mapping[AllocationId, ComputeDemand]
) -> dict[AllocationId, int]:
    """Return the excess charges of containers beside which a kernel ran that was never measured.

    Theory of operation. A kernel that was never measured may run beyond its time window. The device then divides its time
    between that kernel and the kernels of the container whose time window it is. These take longer than they would alone,
    and their container is charged all of that. The kernel that was never measured is charged its part of the time. So more
    is charged in all than time has passed, and the excess is what the other containers were charged too much.

    Args:
        excess_ns: GPU time in ns that all containers were charged beyond the time that has passed.
        charged_ns: GPU time in ns that each container was charged since the last decision.
        demands: every container that has a slice of the device.

    Returns:
        The time in ns to give back to each container, in proportion to its charges and never more than these.
    """
    beside_ns = {name: ns for name, ns in charged_ns.items() if ns > 0 and not demands[name].unmeasured_ns}
    total_ns = sum(beside_ns.values())
    return {name: min(excess_ns, total_ns) * ns // total_ns for name, ns in beside_ns.items()}


def unused_time(
    covered_ns: int,
    charged_ns: Mapping[AllocationId, int],
    granted: Mapping[AllocationId, Sequence[Span]],
    *,
    since_ns: int,
    now_ns: int,
) -> tuple[dict[AllocationId, int], int]:
    """Return how long the device had no work in the time windows of each container, and until when its work lasts.

    Theory of operation. The device is a queue: it does the charged work one launch after the other, whichever container
    made the launch. The arbiter sees only how much was charged between two decisions, and not when. It assumes the earliest
    moment: the start of the first time window of the container that is not over, or ``since_ns`` for a container without
    one. A moment that lies in a time window and at which the queue is empty is unused time of that window's container.

    Args:
        covered_ns: until when the work lasts that was charged before the last decision, as the last call returned it.
        charged_ns: GPU time in ns that each container was charged since the last decision.
        granted: the time windows of each container since the last decision, in order of time.
        since_ns: the moment of the last decision.
        now_ns: the moment of this decision. Both are on the host's monotonic clock.

    Returns:
        The unused time in ns of each container in ``granted``; and the moment until which the charged work lasts, which
        may be after ``now_ns``.
    """
    at_ns = max(covered_ns, since_ns)
    idle: list[Span] = []
    launches = []
    for name, ns in charged_ns.items():
        if ns > 0:
            launches.append((next((start for start, end in granted.get(name, ()) if end > at_ns), since_ns), ns))
    for start_ns, ns in sorted(launches):
        idle.append((at_ns, max(at_ns, start_ns)))
        at_ns = max(at_ns, start_ns) + ns
    idle.append((at_ns, now_ns))
    unused_ns = {
        name: sum(max(0, min(end, b) - max(start, a)) for start, end in spans for a, b in idle)
        for name, spans in granted.items()
    }
    return unused_ns, at_ns if launches else covered_ns
