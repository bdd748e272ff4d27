"""Who may use a device when: the arbiter's decisions as a function of what it saw, without clock or I/O.

Theory of operation. A device with at most one active container needs no turns: a fixed one holds itself to its rate, a
burst or best-effort one may use the idle card. Two or more active containers get *rounds* of turns in absolute time,
written ahead, so that no message is needed at a hand-over: each sleeps to its own start. A round repeats until it is
replaced; an arbiter that is late costs accuracy, not GPU time.

The length of a turn follows deficit round robin (Shreedhar and Varghese, 1995) with measured GPU time as the currency:
each container earns its weight of the time that passes and pays what it was charged; the difference is added to its
next turn. So jitter and overruns correct themselves. Kernels cannot be cut, hence a turn is a whole number of a
container's long kernels, and a container that has not earned one yet waits for a later round.

Weights come from policies: fixed and burst get their share; what nobody has claimed goes to burst in proportion to
shares; best-effort lives on what is left, higher priority first. A fixed container never gets more than its share,
even when the card is idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from calabash.agent.pages_layout import Gate, PagePolicy
from calabash.model.request import AllocationId

MS = 1_000_000

ROUND_NS = 20 * MS  # two tenants change hands a hundred times per second
ROUND_NS_MAX = 2_000 * MS
PLAN_AHEAD_NS = 4 * MS  # the next round is written so long before the present one ends
LEAD_NS = 300_000  # a round that replaces another starts so far in the future
TURN_NS_MIN = 500_000
LONG_KERNEL_NS = MS  # from here on turns are whole kernels
ACTIVE_NS = 10 * MS  # a container without demand for so long is idle
WAITING_NS = 150 * MS  # a waiting launch shows itself at least every 50 ms; older ones died
CREDIT_NS = 20 * MS
IDLE_RATIO = 0.001  # less than this is not planned as idle time
TRICKLE_PERCENT = 1.0  # best-effort is never starved by time that was only lent


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at one container on one device, times in ns of the host's monotonic clock, ``charged_ns`` cumulative."""

    core_percent: int
    policy: PagePolicy
    priority: int = 0
    waiting_count: int = 0
    inflight_ns: int = 0
    demand_ns: int = 0
    charged_ns: int = 0
    kernel_ns: int = 0
    busy_until_ns: int = 0  # when its work in flight should be done


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
class Account:
    """What a container is owed (positive) or has overdrawn, and the counter up to which that is known."""

    credit_ns: int = 0
    charged_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """All that is remembered of a device between two decisions."""

    round: Round | None = None
    active: frozenset[AllocationId] = frozenset()
    accounts: Mapping[AllocationId, Account] = field(default_factory=dict)
    accounted_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How one container is to run; ``turn`` and ``round`` only with Gate.TURN."""

    gate: Gate
    neighbours: int
    turn: Turn | None = None
    round: Round | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Orders for every container of the device; ``replanned`` tells that turns are new."""

    orders: Mapping[AllocationId, Order]
    replanned: bool


def is_active(look: Look, now_ns: int) -> bool:
    """Whether a container wants the device: it waits, launched a moment ago, or its work must still be running."""
    silent_ns = now_ns - look.demand_ns
    if look.policy is PagePolicy.NONE or look.demand_ns == 0:
        return False
    if silent_ns < ACTIVE_NS or (look.waiting_count > 0 and silent_ns < WAITING_NS):
        return True
    return look.inflight_ns > 0 and silent_ns < ACTIVE_NS + 2 * look.inflight_ns


def weights(active: Mapping[AllocationId, Look]) -> dict[AllocationId, float]:
    """The part of the device's time, 0..1, that each active container is entitled to. Their sum is at most 1."""
    percent = {
        name: float(look.core_percent) if look.policy is not PagePolicy.BEST_EFFORT else 0.0
        for name, look in active.items()
    }
    promised = sum(percent.values())
    if promised > 100:
        return {name: value / promised for name, value in percent.items()}
    rest = 100 - promised
    best_effort = [name for name, look in active.items() if look.policy is PagePolicy.BEST_EFFORT]
    burst = {name: look.core_percent for name, look in active.items() if look.policy is PagePolicy.BURST}
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


def decide(state: DeviceState, looks: Mapping[AllocationId, Look], now_ns: int) -> tuple[DeviceState, Decision]:
    """One decision about one device.

    Args:
        state: what the last decision returned; ``DeviceState()`` at first.
        looks: every container that has a slice of the device.
        now_ns: the host's monotonic clock.
    """
    active = {name: look for name, look in looks.items() if is_active(look, now_ns)}
    names = frozenset(active)
    if len(active) < 2:
        accounts = {name: Account(charged_ns=look.charged_ns) for name, look in active.items()}
        orders = {name: _single(look, name in active, len(looks), len(active)) for name, look in looks.items()}
        calm = DeviceState(active=names, accounts=accounts, accounted_ns=now_ns)
        return calm, Decision(orders=orders, replanned=False)

    share = weights(active)
    accounts = _accounts(state, active, share, now_ns)
    current = state.round
    changed = names != state.active
    due = current is None or changed or now_ns >= _end_ns(current, active) - PLAN_AHEAD_NS
    if due:
        current = _next_round(
            None if changed else current,
            active,
            share,
            accounts=accounts,
            newcomers=names - state.active,
            now_ns=now_ns,
        )
    assert current is not None
    orders = {}
    for name, look in looks.items():
        if name in active:
            orders[name] = Order(gate=Gate.TURN, neighbours=len(active) - 1, turn=current.turns[name], round=current)
        else:
            orders[name] = _single(look, False, len(looks), len(active))
    following = DeviceState(round=current, active=names, accounts=accounts, accounted_ns=now_ns)
    return following, Decision(orders=orders, replanned=due)


def _single(look: Look, active: bool, members: int, active_count: int) -> Order:
    """The gate of a container that needs no turn. Whoever is idle may start at once and is then held to its share."""
    neighbours = active_count - active
    if look.policy is PagePolicy.NONE or (
        members == 1 and (look.core_percent >= 100 or look.policy is not PagePolicy.FIXED)
    ):
        return Order(gate=Gate.OPEN, neighbours=neighbours)
    lent = active and look.policy is not PagePolicy.FIXED and look.core_percent < 100
    return Order(gate=Gate.OPEN if lent else Gate.RATE, neighbours=neighbours)


def _accounts(
    state: DeviceState, active: Mapping[AllocationId, Look], share: Mapping[AllocationId, float], now_ns: int
) -> dict[AllocationId, Account]:
    """Earned and paid since the last decision. Who was not active then starts with nothing."""
    elapsed = max(0, now_ns - state.accounted_ns)
    credit = {}
    for name, look in active.items():
        old = state.accounts.get(name)
        if old is None:
            credit[name] = 0
            continue
        # a tenant writes this counter: it can neither run backwards nor outrun the clock by much
        ceiling = elapsed + 2 * max(look.kernel_ns, CREDIT_NS)
        paid = min(max(-ceiling, look.charged_ns - old.charged_ns), ceiling)
        credit[name] = old.credit_ns + int(share[name] * elapsed) - paid
    if sum(share.values()) > 1 - IDLE_RATIO:
        # Nobody can be owed time that the card does not have: lost time and measuring errors are borne by all.
        surplus = sum(credit.values())
        credit = {name: value - int(surplus * share[name]) for name, value in credit.items()}
    accounts = {}
    for name, look in active.items():
        limit = max(CREDIT_NS, 2 * look.kernel_ns)
        bounded = max(-limit - look.kernel_ns, min(limit, credit[name]))
        accounts[name] = Account(credit_ns=bounded, charged_ns=look.charged_ns)
    return accounts


def _next_round(
    current: Round | None,
    active: Mapping[AllocationId, Look],
    share: Mapping[AllocationId, float],
    *,
    accounts: Mapping[AllocationId, Account],
    newcomers: frozenset[AllocationId],
    now_ns: int,
) -> Round:
    """Plan the round after ``current``; without one, or when it is over, from a moment ahead of now."""
    start = now_ns + LEAD_NS
    over = start
    if current is not None:
        start = max(start, _end_ns(current, active))
        over = max(over, min(start, current.end_ns))
    due = {}
    for name in active:
        remaining = _overlap(current.turns[name], now_ns, start) if current is not None and name in current.turns else 0
        due[name] = accounts[name].credit_ns + int(share[name] * (start - now_ns)) - remaining
    length = ROUND_NS
    lengths = _turn_lengths(active, share, due, length)
    while not any(lengths.values()) and length < ROUND_NS_MAX:
        length *= 2
        lengths = _turn_lengths(active, share, due, length)
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


def _end_ns(current: Round, active: Mapping[AllocationId, Look]) -> int:
    """When the last turn of a round is really over: its last long kernel may end after it, or another may not fit."""
    holder = max(current.turns, key=lambda name: current.turns[name].end_ns)
    turn, look = current.turns[holder], active.get(holder)
    if turn.end_ns != current.end_ns or look is None or look.kernel_ns < LONG_KERNEL_NS:
        return current.end_ns
    if turn.end_ns - look.kernel_ns // 2 < look.busy_until_ns < turn.end_ns + look.kernel_ns:
        return look.busy_until_ns
    return current.end_ns


def _turn_lengths(
    active: Mapping[AllocationId, Look],
    share: Mapping[AllocationId, float],
    due: Mapping[AllocationId, int],
    length: int,
) -> dict[AllocationId, int]:
    lengths = {}
    for name, look in active.items():
        nominal = int(share[name] * length)
        kernel = look.kernel_ns
        if kernel >= LONG_KERNEL_NS:
            wanted = (nominal + due[name] + kernel // 2) // kernel * kernel
        else:
            # a round may repeat before the next one is written: what it corrects must stay small
            wanted = nominal + max(-nominal * 3 // 10, min(nominal * 3 // 10, due[name]))
        lengths[name] = wanted if wanted >= TURN_NS_MIN else 0
    return lengths


def _overlap(turn: Turn, start_ns: int, end_ns: int) -> int:
    return max(0, min(turn.end_ns, end_ns) - max(turn.start_ns, start_ns))
