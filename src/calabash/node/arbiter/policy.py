"""Scheduling policy of the arbiter: assign time windows on a device to containers. No clock, no I/O.

Theory of operation. A device with at most one active container needs no time windows: a container of policy fixed limits
itself to its rate, one of policy burst or best-effort may use the idle device. Two or more active containers get *rounds* of
time windows in absolute time. Rounds are written ahead, so that no message is needed at a hand-over: each container sleeps
until its own start. A round repeats until it is replaced; a late arbiter costs accuracy, not GPU time.

The length of a time window follows deficit round robin (Shreedhar and Varghese, 1995) with measured GPU time as the currency:
each container earns its weight of the time that passes and pays what it was charged; the difference is added to its next
time window. So jitter and overruns correct themselves. Kernels cannot be interrupted, hence a time window is a whole number
of a container's long kernels, and a container that has not earned one yet waits for a later round.

Weights come from policies: fixed and burst get their share; unclaimed time goes to burst in proportion to shares; best-effort
gets the rest, higher priority first. A fixed container never gets more than its share, even if the device is idle.

A container that is held strictly (``accounts``) gets time windows even if it is alone, and none while it is in debt. The other
containers are then planned as if it were absent, and those that lost time to it may catch up.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from calabash.model.request import AllocationId
from calabash.node.arbiter.accounts import IDLE_RATIO, LAG_NS_MAX, Account, ComputeDemand, settle
from calabash.node.arbiter.charges import Span, charged_since, overcharged_time, unused_time
from calabash.node.slots.clamped_counters import CREDIT_NS, MS
from calabash.node.slots.layout import Gate, PagePolicy

ROUND_NS = 20 * MS  # two tenants alternate a hundred times per second
ROUND_NS_MAX = 2_000 * MS
PLAN_AHEAD_NS = 4 * MS  # the next round is written so long before the present one ends
LEAD_NS = 300_000  # a round that replaces another starts so far in the future
WINDOW_NS_MIN = 500_000
HANDOVER_NS = 450_000  # from the start of a time window to the first launch
NOTICE_NS_MAX = 4 * MS  # largest delay between a launch and its appearance in the usage page
LONG_KERNEL_NS = MS  # time windows of longer kernels are a whole number of kernels
ACTIVE_NS = 10 * MS  # a container without demand for so long is idle
WAITING_NS = 150 * MS  # a waiting launch renews its demand at least every 50 ms; older ones have ended
TRICKLE_PERCENT = 1.0  # least share of a best-effort container, before unclaimed time is lent to others


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindow:
    """A container's time window in a round, in absolute time; empty if the container has not earned one."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Time windows of one round, which repeats until it is replaced. The round before it ends at ``from_ns``."""

    from_ns: int
    start_ns: int
    end_ns: int
    windows: Mapping[AllocationId, TimeWindow]

    @property
    def length_ns(self) -> int:
        """Period with which the round repeats."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDevice:
    """State of a device between two decisions.

    ``active`` has the containers that wanted the device at the last decision, ``scheduled`` those of the round,
    ``accounts`` the account of every container, and ``accounted_ns`` the time of the last decision.
    """

    round: Round | None = None
    previous: Round | None = None  # the round that is valid until ``round`` begins
    active: frozenset[AllocationId] = frozenset()
    scheduled: frozenset[AllocationId] = frozenset()
    accounts: Mapping[AllocationId, Account] = field(default_factory=dict)
    accounted_ns: int = 0
    covered_ns: int = 0  # until when the work lasts that was charged so far
    excess_ns: int = 0  # charged beyond the time that has passed, and not refunded yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Permission to launch for one container: its gate, and its time window and round if the gate is Gate.TURN.

    ``neighbours`` is the number of other active containers on the device.
    """

    gate: Gate
    neighbours: int
    window: TimeWindow | None = None
    round: Round | None = None


EMPTY_WINDOW = TimeWindow(start_ns=0, end_ns=0)
NO_ROUND = Round(from_ns=0, start_ns=0, end_ns=ROUND_NS, windows={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Orders for every container of the device; ``replanned`` is True if a new round was planned."""

    orders: Mapping[AllocationId, Order]
    replanned: bool


def is_active(demand: ComputeDemand, now_ns: int) -> bool:
    """Return True if a container wants the device: it waits, has just launched work, or its work should still be running."""
    silent_ns = now_ns - demand.demand_ns
    if demand.policy is PagePolicy.NONE or demand.demand_ns == 0:
        return False
    if silent_ns < ACTIVE_NS or (demand.waiting_count > 0 and silent_ns < WAITING_NS):
        return True
    return demand.inflight_ns > 0 and silent_ns < ACTIVE_NS + 2 * demand.inflight_ns


def weights(active: Mapping[AllocationId, ComputeDemand]) -> dict[AllocationId, float]:
    """Return the part of the device's time, 0..1, that each active container is entitled to. The sum is at most 1."""
    percent = {
        name: float(demand.core_percent) if demand.policy is not PagePolicy.BEST_EFFORT else 0.0
        for name, demand in active.items()
    }
    promised = sum(percent.values())
    if promised > 100:
        return {name: value / promised for name, value in percent.items()}
    rest = 100 - promised
    best_effort = [name for name, demand in active.items() if demand.policy is PagePolicy.BEST_EFFORT]
    burst = {name: demand.core_percent for name, demand in active.items() if demand.policy is PagePolicy.BURST}
    if best_effort and burst:
        trickle = min(TRICKLE_PERCENT, rest / (2 * len(best_effort)))
        percent.update(dict.fromkeys(best_effort, trickle))
        rest -= trickle * len(best_effort)
    elif best_effort:
        first = max(active[name].priority for name in best_effort)
        favoured = {name: active[name].core_percent for name in best_effort if active[name].priority == first}
        trickle = min(TRICKLE_PERCENT, rest / (2 * len(best_effort)))
        percent.update(dict.fromkeys((name for name in best_effort if name not in favoured), trickle))
        rest -= trickle * (len(best_effort) - len(favoured))
        burst = favoured
    total = sum(burst.values())
    for name, share in burst.items():
        percent[name] += rest * share / total
    return {name: value / 100 for name, value in percent.items()}


def decide(
    state: SharedDevice, demands: Mapping[AllocationId, ComputeDemand], now_ns: int
) -> tuple[SharedDevice, Decision]:
    """Decide the orders of all containers of one device, and return them with the next state.

    Args:
        state: the state that the last decision returned; ``SharedDevice()`` at first.
        demands: every container that has a slice of the device.
        now_ns: the host's monotonic clock.
    """
    active = {name: demand for name, demand in demands.items() if _wants_device(state, name, demand, now_ns)}
    entitled = weights(active)
    share = {name: entitled.get(name, demand.core_percent / 100) for name, demand in demands.items()}
    among = state.scheduled & active.keys()
    charged_ns = {name: charged_since(state.accounts, name, demand) for name, demand in demands.items()}
    unused_ns, charged_until_ns = unused_time(
        state.covered_ns,
        charged_ns,
        _granted(state, among, now_ns),
        since_ns=state.accounted_ns,
        now_ns=now_ns,
    )
    under_way_ns = sum(min(LAG_NS_MAX, max(0, demand.inflight_ns)) for demand in demands.values())
    covered_ns = min(charged_until_ns, now_ns + under_way_ns + NOTICE_NS_MAX)  # charges may have been too high
    is_divided = any(demand.unmeasured_ns for demand in demands.values())
    excess_ns = min(CREDIT_NS, state.excess_ns + charged_until_ns - covered_ns) if is_divided else 0
    overcharged_ns = overcharged_time(excess_ns, charged_ns, demands)
    accounts = settle(
        state.accounts,
        demands,
        share,
        among=among,
        unused_ns=unused_ns,
        overcharged_ns=overcharged_ns,
        elapsed_ns=max(0, now_ns - state.accounted_ns),
        now_ns=now_ns,
    )
    strict = {name for name in active if accounts[name].is_strict(now_ns)}
    suspended = {name for name in active if accounts[name].is_suspended(now_ns)}
    # A container in debt gets no time window; a strictly held one is not trusted with the length of its kernels.
    running = {
        name: replace(demand, kernel_ns=0, busy_until_ns=0) if name in strict else demand
        for name, demand in active.items()
        if name not in suspended
    }
    needs_windows = len(running) > 1 or any(
        name in strict and demand.policy is PagePolicy.FIXED for name, demand in running.items()
    )
    names = frozenset(running) if needs_windows else frozenset()
    current, previous, due = None, None, False
    if needs_windows:
        changed = names != state.scheduled
        current, previous = (None, None) if changed else (state.round, state.previous)
        due = current is None or now_ns >= _end_ns(current, running, covered_ns) - PLAN_AHEAD_NS
        if due:
            previous = current
            current = _next_round(
                previous,
                running,
                weights(running),
                accounts=accounts,
                covered_ns=covered_ns,
                newcomers=names - state.active,
                now_ns=now_ns,
            )
    orders = {}
    for name, demand in demands.items():
        if name in suspended:
            orders[name] = Order(gate=Gate.TURN, neighbours=len(active) - 1, window=EMPTY_WINDOW, round=NO_ROUND)
        elif current is not None and name in names:
            orders[name] = Order(
                gate=Gate.TURN, neighbours=len(active) - 1, window=current.windows[name], round=current
            )
        else:
            owed = bool(suspended) and accounts[name].credit_ns > CREDIT_NS
            orders[name] = _single(demand, name in active, len(demands), len(active), owed=owed)
    following = SharedDevice(
        round=current,
        previous=previous,
        active=frozenset(active),
        scheduled=names,
        accounts=accounts,
        accounted_ns=now_ns,
        covered_ns=covered_ns,
        excess_ns=excess_ns - sum(overcharged_ns.values()),
    )
    return following, Decision(orders=orders, replanned=due)


def _wants_device(state: SharedDevice, name: AllocationId, demand: ComputeDemand, now_ns: int) -> bool:
    """Return True if a container wants the device.

    The usage page decides, with two exceptions. A container that asked for time windows and did not use them (a
    phantom) does not want the device. A container that just used the device without reporting it does.
    """
    account = state.accounts.get(name)
    if account is None:
        return is_active(demand, now_ns)
    return (is_active(demand, now_ns) and not account.is_phantom) or account.is_silent_user(now_ns)


def _single(demand: ComputeDemand, active: bool, members: int, active_count: int, *, owed: bool) -> Order:
    """Return the ``Order`` for a container that needs no time window.

    Such a container may launch at any time: within its share, or without a limit if it may use the time of others.

    Args:
        active: the container wants the device.
        members: number of containers with a slice of the device; ``active_count``: those that want it.
        owed: the container may use the whole device, because a suspended container owes it time.
    """
    neighbours = active_count - active
    if demand.policy is PagePolicy.NONE or (
        members == 1 and (demand.core_percent >= 100 or demand.policy is not PagePolicy.FIXED)
    ):
        return Order(gate=Gate.OPEN, neighbours=neighbours)
    lent = active and (owed or demand.policy is not PagePolicy.FIXED) and demand.core_percent < 100
    return Order(gate=Gate.OPEN if lent else Gate.RATE, neighbours=neighbours)


def _next_round(
    current: Round | None,
    active: Mapping[AllocationId, ComputeDemand],
    share: Mapping[AllocationId, float],
    *,
    accounts: Mapping[AllocationId, Account],
    covered_ns: int,
    newcomers: frozenset[AllocationId],
    now_ns: int,
) -> Round:
    """Return the round that follows ``current``.

    If there is no current round, or it is over, the new one starts ``LEAD_NS`` from now.

    Args:
        covered_ns: until when the work lasts that was charged so far.
        newcomers: containers that did not want the device at the last decision; their time windows come first.
    """
    start = now_ns + LEAD_NS
    over = start
    if current is not None:
        start = max(start, _end_ns(current, active, covered_ns))
        over = max(over, min(start, current.end_ns))
    due = {}
    for name in active:
        # A kernel that fills its time window is charged already.
        since = max(now_ns, covered_ns) if active[name].kernel_ns > share[name] * ROUND_NS else now_ns
        remaining = (
            _overlap(current.windows[name], since, start) if current is not None and name in current.windows else 0
        )
        due[name] = accounts[name].credit_ns + int(share[name] * (start - now_ns)) - remaining
    lengths = _window_lengths(active, share, due, is_free=covered_ns < start + ROUND_NS)
    order = sorted(active, key=lambda name: (name not in newcomers, -active[name].priority, name))
    windows = {}
    at = start
    for name in order:
        windows[name] = TimeWindow(start_ns=at, end_ns=at + lengths[name])
        at += lengths[name]
    # time that no container may use: fixed shares that do not add up to the whole
    idle = 1 - sum(share.values())
    if idle > IDLE_RATIO:
        at = max(at + int(idle * ROUND_NS), start + WINDOW_NS_MIN)
    return Round(from_ns=over, start_ns=start, end_ns=max(at, start + WINDOW_NS_MIN), windows=windows)


def _end_ns(current: Round, active: Mapping[AllocationId, ComputeDemand], covered_ns: int) -> int:
    """Return the end of a round: as planned, or with the long kernel of its last time window if that ends near it."""
    holder = max(current.windows, key=lambda name: current.windows[name].end_ns)
    window, demand = current.windows[holder], active.get(holder)
    if window.end_ns != current.end_ns or demand is None or demand.kernel_ns < LONG_KERNEL_NS:
        return current.end_ns
    until_ns = min(demand.busy_until_ns, covered_ns + NOTICE_NS_MAX)
    if window.end_ns - demand.kernel_ns // 2 < until_ns < window.end_ns + demand.kernel_ns:
        return until_ns
    return current.end_ns


def _window_lengths(
    active: Mapping[AllocationId, ComputeDemand],
    share: Mapping[AllocationId, float],
    due: Mapping[AllocationId, int],
    *,
    is_free: bool,
) -> dict[AllocationId, int]:
    """Return the lengths of the time windows of a round.

    Containers with kernels longer than ``ROUND_NS`` are not served independently, because several of them could fall into
    one round. Containers whose kernels have about the same length earn one kernel together, and the one that is owed the
    largest part of a kernel gets it; so their kernels are spread evenly over time. A container that owes more than a kernel
    does not delay the others. A round has at most one time window for such a kernel. If no container has earned a time
    window, the container that is owed most gets one.

    Args:
        share: the part of the device's time, 0..1, that each container is entitled to.
        due: time in ns that each container is owed; negative for a debt.
        is_free: no kernel longer than ``ROUND_NS`` is in flight.
    """
    lengths = {}
    earned = {}
    for name, demand in active.items():
        nominal = int(share[name] * ROUND_NS)
        kernel = demand.kernel_ns
        if kernel > ROUND_NS:
            alike = [other for other in active if kernel <= 2 * active[other].kernel_ns <= 4 * kernel]
            earned[name] = sum(int(share[other] * ROUND_NS) + max(-kernel, due[other]) for other in alike)
            wanted = 0
        elif kernel >= LONG_KERNEL_NS:
            wanted = (nominal + min(max(CREDIT_NS, kernel), due[name]) + kernel // 2) // kernel * kernel
        else:
            # a round may repeat before the next one is written, so its corrections must stay small
            little = nominal * 3 // 10
            wanted = nominal + max(-little, min(little, due[name])) if due[name] > -CREDIT_NS else 0
        lengths[name] = wanted if wanted >= WINDOW_NS_MIN else 0
    ready = [name for name, ns in earned.items() if is_free and ns >= active[name].kernel_ns // 2]
    if ready:
        first = max(ready, key=lambda name: due[name] / active[name].kernel_ns)
        lengths[first] = active[first].kernel_ns
    elif active and is_free and not any(lengths.values()):
        first = max(active, key=lambda name: due[name])
        if due[first] >= 0:
            lengths[first] = max(active[first].kernel_ns, WINDOW_NS_MIN)
    return lengths


def _granted(state: SharedDevice, among: AbstractSet[AllocationId], now_ns: int) -> dict[AllocationId, list[Span]]:
    """Return for each container in ``among`` the time spans since the last decision in which it might run work."""
    since_ns = state.accounted_ns
    spans: dict[AllocationId, list[Span]] = {name: [] for name in among}
    if state.round is None or now_ns - since_ns > ROUND_NS_MAX:
        return spans
    begin_ns = state.round.from_ns
    parts = [(state.round, max(since_ns, begin_ns), now_ns)]
    if state.previous is not None:
        parts.insert(0, (state.previous, since_ns, min(now_ns, begin_ns)))
    for round_, from_ns, until_ns in parts:
        for name in among & round_.windows.keys():
            window, period = round_.windows[name], round_.length_ns
            skip = max(0, (from_ns - window.end_ns) // period + 1) * period if from_ns >= window.end_ns else 0
            start = window.start_ns + skip + HANDOVER_NS
            end = window.end_ns + skip
            while start < until_ns and end > start:
                if end > from_ns:
                    spans[name].append((max(start, from_ns), min(end, until_ns)))
                start, end = start + period, end + period
    return spans


def _overlap(window: TimeWindow, start_ns: int, end_ns: int) -> int:
    return max(0, min(window.end_ns, end_ns) - max(window.start_ns, start_ns))
