"""Who may use a device when: the arbiter's decisions as a function of what it saw, without clock or I/O.

Theory of operation. A device with at most one active container needs no turns: a fixed one holds itself to its rate, a
burst or best-effort one may use the idle card. Two or more active containers get *rounds* of turns in absolute time,
written ahead, so that no message is needed at a hand-over: each sleeps to its own start. A round repeats until it is
replaced; an arbiter that is late costs accuracy, not GPU time.

The length of a turn follows deficit round robin (Shreedhar and Varghese, 1995) with measured GPU time as the currency:
each container earns its weight of the time that passes and pays what it was charged; the difference is added to its
next turn. So jitter and overruns correct themselves. Kernels cannot be cut, hence a turn is a whole number of a
container's long kernels, and a container that has not earned one yet waits for a later round.

Weights come from policies: fixed and burst get their share; what nobody wants goes to burst in proportion to
shares; best-effort lives on what is left, higher priority first. A fixed container never gets more than its share,
even when the card is idle.

A container that is held strictly (``arbiter_accounts``) gets turns even when it is alone, and none at all while it is
in debt; the others are then planned as if it were not there, and who was robbed may catch up.
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

ROUND_NS = 20 * MS  # two tenants change hands a hundred times per second
ROUND_NS_MAX = 2_000 * MS
PLAN_AHEAD_NS = 4 * MS  # the next round is written so long before the present one ends
LEAD_NS = 300_000  # a round that replaces another starts so far in the future
TURN_NS_MIN = 500_000
HANDOVER_NS = 450_000  # from the start of a time window to the first launch
TOLD_LATE_NS = 4 * MS  # a launch is noticed so long after it at most
LONG_KERNEL_NS = MS  # from here on turns are whole kernels
ACTIVE_NS = 10 * MS  # a container without demand for so long is idle
WAITING_NS = 150 * MS  # a waiting launch shows itself at least every 50 ms; older ones died
TRICKLE_PERCENT = 1.0  # best-effort is never starved by time that was only lent


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A turn in a round, in absolute time; empty when the container has not earned one."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Turns of one round; repeats with its length as period until replaced. ``from_ns``: the one before ends there."""

    from_ns: int
    start_ns: int
    end_ns: int
    turns: Mapping[AllocationId, Turn]

    @property
    def length_ns(self) -> int:
        """The period."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDevice:
    """All that is remembered of a device between two decisions; ``taking_turns`` are those in the round."""

    round: Round | None = None
    previous: Round | None = None  # what holds until ``round`` begins
    active: frozenset[AllocationId] = frozenset()
    taking_turns: frozenset[AllocationId] = frozenset()
    accounts: Mapping[AllocationId, Account] = field(default_factory=dict)
    accounted_ns: int = 0
    covered_ns: int = 0  # until when the work lasts that was charged so far
    excess_ns: int = 0  # charged beyond the time that has passed, and not given back yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How one container is to run; ``turn`` and ``round`` only with Gate.TURN."""

    gate: Gate
    neighbours: int
    turn: Turn | None = None
    round: Round | None = None


NEVER = Turn(start_ns=0, end_ns=0)
NO_ROUND = Round(from_ns=0, start_ns=0, end_ns=ROUND_NS, turns={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Orders for every container of the device; ``replanned`` tells that turns are new."""

    orders: Mapping[AllocationId, Order]
    replanned: bool


def is_active(demand: ComputeDemand, now_ns: int) -> bool:
    """Whether a container wants the device: it waits, launched a moment ago, or its work must still be running."""
    silent_ns = now_ns - demand.demand_ns
    if demand.policy is PagePolicy.NONE or demand.demand_ns == 0:
        return False
    if silent_ns < ACTIVE_NS or (demand.waiting_count > 0 and silent_ns < WAITING_NS):
        return True
    return demand.inflight_ns > 0 and silent_ns < ACTIVE_NS + 2 * demand.inflight_ns


def weights(active: Mapping[AllocationId, ComputeDemand]) -> dict[AllocationId, float]:
    """The part of the device's time, 0..1, that each active container is entitled to. Their sum is at most 1."""
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
    """One decision about one device.

    Args:
        state: what the last decision returned; ``SharedDevice()`` at first.
        demands: every container that has a slice of the device.
        now_ns: the host's monotonic clock.
    """
    active = {name: demand for name, demand in demands.items() if _is_wanting(state, name, demand, now_ns)}
    entitled = weights(active)
    share = {name: entitled.get(name, demand.core_percent / 100) for name, demand in demands.items()}
    among = state.taking_turns & active.keys()
    charged_ns = {name: charged_since(state.accounts, name, demand) for name, demand in demands.items()}
    unused_ns, charged_until_ns = unused_time(
        state.covered_ns,
        charged_ns,
        _granted(state, among, now_ns),
        since_ns=state.accounted_ns,
        now_ns=now_ns,
    )
    under_way_ns = sum(min(LAG_NS_MAX, max(0, demand.inflight_ns)) for demand in demands.values())
    covered_ns = min(charged_until_ns, now_ns + under_way_ns + TOLD_LATE_NS)  # charges may have been too high
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
    # What is in debt gets no turn, and how long the kernels of a strictly held container are is not its own to say.
    running = {
        name: replace(demand, kernel_ns=0, busy_until_ns=0) if name in strict else demand
        for name, demand in active.items()
        if name not in suspended
    }
    needs_turns = len(running) > 1 or any(
        name in strict and demand.policy is PagePolicy.FIXED for name, demand in running.items()
    )
    names = frozenset(running) if needs_turns else frozenset()
    current, previous, due = None, None, False
    if needs_turns:
        changed = names != state.taking_turns
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
            orders[name] = Order(gate=Gate.TURN, neighbours=len(active) - 1, turn=NEVER, round=NO_ROUND)
        elif current is not None and name in names:
            orders[name] = Order(gate=Gate.TURN, neighbours=len(active) - 1, turn=current.turns[name], round=current)
        else:
            owed = bool(suspended) and accounts[name].credit_ns > CREDIT_NS
            orders[name] = _single(demand, name in active, len(demands), len(active), owed=owed)
    following = SharedDevice(
        round=current,
        previous=previous,
        active=frozenset(active),
        taking_turns=names,
        accounts=accounts,
        accounted_ns=now_ns,
        covered_ns=covered_ns,
        excess_ns=excess_ns - sum(overcharged_ns.values()),
    )
    return following, Decision(orders=orders, replanned=due)


def _is_wanting(state: SharedDevice, name: AllocationId, demand: ComputeDemand, now_ns: int) -> bool:
    """By what its page says, unless nothing follows; or by what the driver saw of one whose page is silent."""
    account = state.accounts.get(name)
    if account is None:
        return is_active(demand, now_ns)
    return (is_active(demand, now_ns) and not account.is_phantom) or account.is_silent_user(now_ns)


def _single(demand: ComputeDemand, active: bool, members: int, active_count: int, *, owed: bool) -> Order:
    """The gate of a container that needs no turn. Whoever is idle may start at once and is then held to its share."""
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
    """TurnPlan the round after ``current``; without one, or when it is over, from a moment ahead of now."""
    start = now_ns + LEAD_NS
    over = start
    if current is not None:
        start = max(start, _end_ns(current, active, covered_ns))
        over = max(over, min(start, current.end_ns))
    due = {}
    for name in active:
        # A kernel that fills its time window is charged already.
        since = max(now_ns, covered_ns) if active[name].kernel_ns > share[name] * ROUND_NS else now_ns
        remaining = _overlap(current.turns[name], since, start) if current is not None and name in current.turns else 0
        due[name] = accounts[name].credit_ns + int(share[name] * (start - now_ns)) - remaining
    lengths = _turn_lengths(active, share, due, is_free=covered_ns < start + ROUND_NS)
    order = sorted(active, key=lambda name: (name not in newcomers, -active[name].priority, name))
    turns = {}
    at = start
    for name in order:
        turns[name] = Turn(start_ns=at, end_ns=at + lengths[name])
        at += lengths[name]
    # time that no one may use: fixed shares that do not add up to the whole
    idle = 1 - sum(share.values())
    if idle > IDLE_RATIO:
        at = max(at + int(idle * ROUND_NS), start + TURN_NS_MIN)
    return Round(from_ns=over, start_ns=start, end_ns=max(at, start + TURN_NS_MIN), turns=turns)


def _end_ns(current: Round, active: Mapping[AllocationId, ComputeDemand], covered_ns: int) -> int:
    """Return when the last time window of a round is really over: its last long kernel may end after it, or not fit."""
    holder = max(current.turns, key=lambda name: current.turns[name].end_ns)
    turn, demand = current.turns[holder], active.get(holder)
    if turn.end_ns != current.end_ns or demand is None or demand.kernel_ns < LONG_KERNEL_NS:
        return current.end_ns
    until_ns = min(demand.busy_until_ns, covered_ns + TOLD_LATE_NS)
    if turn.end_ns - demand.kernel_ns // 2 < until_ns < turn.end_ns + demand.kernel_ns:
        return until_ns
    return current.end_ns


def _turn_lengths(
    active: Mapping[AllocationId, ComputeDemand],
    share: Mapping[AllocationId, float],
    due: Mapping[AllocationId, int],
    *,
    is_free: bool,
) -> dict[AllocationId, int]:
    """Return the lengths of the time windows of a round.

    Containers of kernels longer than ``ROUND_NS`` are not served each by itself, for several of them would come at once.
    Those of about the same length earn one kernel together, and the one that is owed most of a kernel gets it; so their
    kernels are spread evenly over time. A container that owes more than a kernel does not hold up the others. A round
    has one time window for such a kernel at most. Where nobody has earned a time window, the container that is owed most
    gets one.

    Args:
        is_free: no such kernel is under way.
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
            # a round may repeat before the next one is written: what it corrects must stay small
            little = nominal * 3 // 10
            wanted = nominal + max(-little, min(little, due[name])) if due[name] > -CREDIT_NS else 0
        lengths[name] = wanted if wanted >= TURN_NS_MIN else 0
    ready = [name for name, ns in earned.items() if is_free and ns >= active[name].kernel_ns // 2]
    if ready:
        first = max(ready, key=lambda name: due[name] / active[name].kernel_ns)
        lengths[first] = active[first].kernel_ns
    elif active and is_free and not any(lengths.values()):
        first = max(active, key=lambda name: due[name])
        if due[first] >= 0:
            lengths[first] = max(active[first].kernel_ns, TURN_NS_MIN)
    return lengths


def _granted(state: SharedDevice, among: AbstractSet[AllocationId], now_ns: int) -> dict[AllocationId, list[Span]]:
    """Return the time windows of containers since the last decision, as far as they should be used."""
    since_ns = state.accounted_ns
    spans: dict[AllocationId, list[Span]] = {name: [] for name in among}
    if state.round is None or now_ns - since_ns > ROUND_NS_MAX:
        return spans
    begin_ns = state.round.from_ns
    parts = [(state.round, max(since_ns, begin_ns), now_ns)]
    if state.previous is not None:
        parts.insert(0, (state.previous, since_ns, min(now_ns, begin_ns)))
    for round_, from_ns, until_ns in parts:
        for name in among & round_.turns.keys():
            turn, period = round_.turns[name], round_.length_ns
            skip = max(0, (from_ns - turn.end_ns) // period + 1) * period if from_ns >= turn.end_ns else 0
            start = turn.start_ns + skip + HANDOVER_NS
            end = turn.end_ns + skip
            while start < until_ns and end > start:
                if end > from_ns:
                    spans[name].append((max(start, from_ns), min(end, until_ns)))
                start, end = start + period, end + period
    return spans


def _overlap(turn: Turn, start_ns: int, end_ns: int) -> int:
    return max(0, min(turn.end_ns, end_ns) - max(turn.start_ns, start_ns))
