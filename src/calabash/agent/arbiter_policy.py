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
from dataclasses import dataclass, field, replace

from calabash.agent.arbiter_accounts import IDLE_RATIO, PREPAID_KERNEL_NS, Account, ComputeDemand, settle
from calabash.agent.believed import CREDIT_NS, MS
from calabash.agent.pages_layout import Gate, PagePolicy
from calabash.model.request import AllocationId

ROUND_NS = 20 * MS  # two tenants change hands a hundred times per second
ROUND_NS_MAX = 2_000 * MS
PLAN_AHEAD_NS = 4 * MS  # the next round is written so long before the present one ends
LEAD_NS = 300_000  # a round that replaces another starts so far in the future
TURN_NS_MIN = 500_000
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
    active: frozenset[AllocationId] = frozenset()
    taking_turns: frozenset[AllocationId] = frozenset()
    accounts: Mapping[AllocationId, Account] = field(default_factory=dict)
    accounted_ns: int = 0


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
    accounts = settle(
        state.accounts,
        demands,
        share,
        among=state.taking_turns & active.keys(),
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
    current, due = None, False
    if needs_turns:
        changed = names != state.taking_turns
        current = None if changed else state.round
        due = current is None or now_ns >= _end_ns(current, running, accounts) - PLAN_AHEAD_NS
        if due:
            current = _next_round(
                current,
                running,
                weights(running),
                accounts=accounts,
                newcomers=names - state.active,
                now_ns=now_ns,
            )
            accounts = _prepaid(accounts, current, running, weights(running))
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
        round=current, active=frozenset(active), taking_turns=names, accounts=accounts, accounted_ns=now_ns
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
    newcomers: frozenset[AllocationId],
    now_ns: int,
) -> Round:
    """TurnPlan the round after ``current``; without one, or when it is over, from a moment ahead of now."""
    start = now_ns + LEAD_NS
    over = start
    if current is not None:
        start = max(start, _end_ns(current, active, accounts))
        over = max(over, min(start, current.end_ns))
    due = {}
    for name in active:
        remaining = _overlap(current.turns[name], now_ns, start) if current is not None and name in current.turns else 0
        if accounts[name].prepaid_ns:
            remaining = max(0, remaining - accounts[name].prepaid_ns)
        due[name] = accounts[name].credit_ns + int(share[name] * (start - now_ns)) - remaining
    length = ROUND_NS
    wasting = frozenset(name for name in active if accounts[name].is_wasting)
    lengths = _turn_lengths(active, share, due, length, wasting)
    while not any(lengths.values()) and length < ROUND_NS_MAX:
        length *= 2
        lengths = _turn_lengths(active, share, due, length, wasting)
    order = sorted(active, key=lambda name: (name not in newcomers, -active[name].priority, name))
    turns = {}
    at = start
    for name in order:
        turns[name] = Turn(start_ns=at, end_ns=at + lengths[name])
        at += lengths[name]
    # time that no one may use: fixed shares that do not add up to the whole
    idle = 1 - sum(share.values())
    if idle > IDLE_RATIO:
        at = max(at + int(idle * length), start + TURN_NS_MIN)
    return Round(from_ns=over, start_ns=start, end_ns=max(at, start + TURN_NS_MIN), turns=turns)


def _is_prepaid(kernel_ns: int, nominal_ns: int) -> bool:
    """Whether turns are longer than the share of a round for the kernels' sake: such are paid for, used or not."""
    return kernel_ns >= LONG_KERNEL_NS and (kernel_ns >= PREPAID_KERNEL_NS or kernel_ns > nominal_ns)


def _prepaid(
    accounts: Mapping[AllocationId, Account],
    planned: Round,
    active: Mapping[AllocationId, ComputeDemand],
    share: Mapping[AllocationId, float],
) -> dict[AllocationId, Account]:
    """Every container that was given a turn for its long kernels has paid for it."""
    turns = planned.turns
    return {
        name: account.prepaying(turns[name].end_ns - turns[name].start_ns)
        if name in turns
        and turns[name].end_ns > turns[name].start_ns
        and _is_prepaid(active[name].kernel_ns, int(share[name] * ROUND_NS))
        else account
        for name, account in accounts.items()
    }


def _end_ns(
    current: Round, active: Mapping[AllocationId, ComputeDemand], accounts: Mapping[AllocationId, Account]
) -> int:
    """When the last turn of a round is really over: its last long kernel may end after it, or another may not fit."""
    holder = max(current.turns, key=lambda name: current.turns[name].end_ns)
    turn, demand = current.turns[holder], active.get(holder)
    if turn.end_ns != current.end_ns or demand is None or demand.kernel_ns < LONG_KERNEL_NS:
        return current.end_ns
    account = accounts[holder]
    if account.is_wasting or account.prepaid_ns > (turn.end_ns - turn.start_ns) // 2:
        return current.end_ns  # nothing of it runs
    if turn.end_ns - demand.kernel_ns // 2 < demand.busy_until_ns < turn.end_ns + demand.kernel_ns:
        return demand.busy_until_ns
    return current.end_ns


def _turn_lengths(
    active: Mapping[AllocationId, ComputeDemand],
    share: Mapping[AllocationId, float],
    due: Mapping[AllocationId, int],
    length: int,
    wasting: frozenset[AllocationId],
) -> dict[AllocationId, int]:
    lengths = {}
    for name, demand in active.items():
        nominal = int(share[name] * length)
        kernel = demand.kernel_ns
        little = nominal * 3 // 10
        if kernel >= LONG_KERNEL_NS and name in wasting and not _is_prepaid(kernel, nominal):
            wanted = (nominal + min(little, due[name]) + kernel // 2) // kernel * kernel
        elif kernel >= LONG_KERNEL_NS:
            wanted = (nominal + due[name] + kernel // 2) // kernel * kernel
        else:
            # a round may repeat before the next one is written: what it corrects must stay small
            wanted = nominal + max(-little, min(little, due[name]))
        lengths[name] = wanted if wanted >= TURN_NS_MIN else 0
    return lengths


def _overlap(turn: Turn, start_ns: int, end_ns: int) -> int:
    return max(0, min(turn.end_ns, end_ns) - max(turn.start_ns, start_ns))
