"""Reference implementation of evictions: plain lists and no caches, every unit is examined for every plan.

``PlainEviction`` replaces ``calabash.sched.actions.evict.Eviction``, which must decide the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from tests.oracle.plain_search import find_victims

from calabash.sched.actions.backfill import HeldNodes
from calabash.sched.actions.estimate import estimated_end_s
from calabash.sched.actions.packing import place_together
from calabash.sched.actions.plan import PackingKey, Plan, shapes_of
from calabash.sched.actions.quota import devices_of, mark_in_quota
from calabash.sched.actions.victims import is_borrow_paused
from calabash.sched.amounts import EPSILON, Amount, total
from calabash.sched.charges import is_charged_by_count
from calabash.sched.decisions import GangKey, Request, Running
from calabash.sched.queues.gang import Gang, Unit, unit_of, units_of
from calabash.sched.queues.reservation import Reservation
from calabash.sched.state import SchedulerState


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimPool:
    """Units that one gang may evict, and the limits as in ``calabash.sched.actions.evict.VictimPool``."""

    in_quota: bool
    eligible: tuple[Unit, ...]
    ratio_max: float
    budgets: dict[str, float] = field(default_factory=dict)


class VictimRules:
    """Rules of eviction in one cycle. The units of a queue are cached until a request of the queue starts or stops.

    Args:
        started: requests that this round has started, which may not be evicted.

    Attributes:
        spared: True if a unit was not eligible for that reason alone.
    """

    def __init__(self, state: SchedulerState, started: AbstractSet[str] = frozenset()) -> None:
        self.spared = False
        self._started = started
        self._state = state
        self._units: dict[str, list[Unit]] = {}
        self._ahead: dict[str, dict[int, Amount]] = {}

    def queue_changed(self, queue: str) -> None:
        """Drop the cached units of a queue."""
        self._units.pop(queue, None)
        self._ahead.pop(queue, None)

    def units_evicted(self, units: Iterable[Unit]) -> None:
        """Update the cached units after an eviction. Borrowed units do not affect the marks of others."""
        borrowed: dict[str, set[str]] = {}
        for unit in units:
            if unit.in_quota:
                self.queue_changed(unit.queue)
            else:
                borrowed.setdefault(unit.queue, set()).add(unit.members[0].request.id)
        for queue, names in borrowed.items():
            if queue in self._units:
                self._units[queue] = [u for u in self._units[queue] if u.members[0].request.id not in names]

    def units(self, queue: str) -> list[Unit]:
        """Return all running units of the queue with their in-quota marks."""
        cached = self._units.get(queue)
        if cached is None:
            gangs = self._state.registry.running_in.get(queue, {})
            found = [unit for gang in gangs.values() for unit in units_of(gang)]
            tree = self._state.tree
            cached = self._units[queue] = mark_in_quota(found, tree.guaranteed(queue), tree.form.managed)
        return cached

    def others(self, queue: str) -> list[str]:
        """Return all other leaf queues."""
        return [name for name in self._state.tree.form.leaves if name != queue]

    def would_be_in_quota(self, queue: str, priority: int, need: Amount) -> bool:
        """Return True if an amount would be in quota if it started now at a priority."""
        known = self._ahead.setdefault(queue, {})
        ahead = known.get(priority)
        if ahead is None:
            ahead = known[priority] = total(
                u.amount for u in self.units(queue) if u.in_quota and u.priority >= priority
            )
        return self._state.tree.within_guaranteed(queue, ahead, need)

    def is_in_quota_at(self, gang: Gang, plan: Plan) -> bool:
        """Return True if the placed requests are in quota at their placements; small slices may not be."""
        if not self.are_small([request for request, _ in plan.placed]):
            return True
        state = self._state
        members = tuple(
            Running(
                request=request,
                placement=placement,
                node="",
                started_at_s=state.now_s,
                charge=state.charges.charge(request.shape),
                sequence=1 << 60,
            )
            for request, placement in plan.placed
        )
        evicted = {unit.members for unit in plan.evicted}
        units = [unit for unit in self.units(gang.queue) if unit.members not in evicted]
        units.append(unit_of(gang, members, core=gang.missing > 0))
        marked = mark_in_quota(units, state.tree.guaranteed(gang.queue), state.tree.form.managed)
        return any(unit.in_quota for unit in marked if unit.members == members)

    def are_small(self, requests: Sequence[Request]) -> bool:
        """Return True if all requests are charged the least charge of their number of slices."""
        return all(is_charged_by_count(r.shape, self._state.charges.charge(r.shape)) for r in requests)

    def beside_own_slices(self, queue: str, units: Iterable[Unit]) -> list[Unit]:
        """Return those of the units that are on a device where small slices of the queue are in quota."""
        small = [u for u in self.units(queue) if u.in_quota and self.are_small([m.request for m in u.members])]
        own = {device for unit in small for device in devices_of(unit)}
        return [unit for unit in units if own & devices_of(unit)]

    def evictable(self, units: list[Unit], requester: Gang, *, guarded: bool = False) -> list[Unit]:
        """Return those of the units that may be evicted now; a core only if all of its surplus may be evicted.

        Args:
            guarded: include borrowed units that are guarded.
        """
        now_s, rest_s = self._state.now_s, self._state.options.min_run_time_s
        chosen = [
            unit
            for unit in units
            if unit.gang != requester.key
            and all(
                m.request.evictable
                and m.started_at_s + rest_s <= now_s
                and (not m.request.guarded or (guarded and not unit.in_quota))
                for m in unit.members
            )
        ]
        if self._started:
            earlier = [unit for unit in chosen if self._started.isdisjoint(m.request.id for m in unit.members)]
            self.spared |= len(earlier) < len(chosen)
            chosen = earlier
        surplus_there: dict[GangKey, int] = {}
        for unit in chosen:
            if not unit.core:
                surplus_there[unit.gang] = surplus_there.get(unit.gang, 0) + 1
        return [u for u in chosen if not u.core or self._surplus(u) == surplus_there.get(u.gang, 0)]

    def _surplus(self, core: Unit) -> int:
        return len(self._state.registry.gangs[core.gang].running) - len(core.members)


def reclaimable(state: SchedulerState, rules: VictimRules, gang: Gang, need: Amount) -> list[Unit]:
    """Return the borrowed units of other queues, for a gang within the guaranteed amount of its queue; else none."""
    in_quota = total(u.amount for u in rules.units(gang.queue) if u.in_quota)
    if not state.options.reclaim or not state.tree.within_guaranteed(gang.queue, in_quota, need):
        return []
    return [u for queue in rules.others(gang.queue) for u in rules.units(queue) if not u.in_quota]


def above_fair_share(
    state: SchedulerState, rules: VictimRules, gang: Gang, need: Amount
) -> tuple[list[Unit], dict[str, float]]:
    """Return the borrowed units of queues above their fair share, and how much each may lose, if the gang keeps to its own."""
    tree = state.tree
    resource = 0 if need.gpu_milli else 1
    used, fair = tree.used(gang.queue), tree.fair(gang.queue)
    if not state.options.reclaim_fair_share or used[resource] + need[resource] > fair[resource] + EPSILON:
        return [], {}
    units: list[Unit] = []
    budgets: dict[str, float] = {}
    for queue in rules.others(gang.queue):
        over = tree.used(queue)[resource] - tree.fair(queue)[resource]
        if over > EPSILON:
            budgets[queue] = over
            units.extend(u for u in rules.units(queue) if not u.in_quota)
    return units, budgets


def lower_priority(
    state: SchedulerState, rules: VictimRules, gang: Gang, priority: int, *, in_quota: bool
) -> list[Unit]:
    """Return the units of strictly lower priority; those in quota only for a gang that becomes in quota itself."""
    if not state.options.preempt:
        return []
    return [u for u in rules.units(gang.queue) if u.priority < priority and (in_quota or not u.in_quota)]


def below_limit(
    state: SchedulerState, rules: VictimRules, gang: Gang, requests: Sequence[Request], need: Amount
) -> list[Unit]:
    """Return units of the gang's queue whose eviction keeps it within all limits, none of which can be left out; else none."""
    priority = max(r.priority for r in requests)
    in_quota = rules.would_be_in_quota(gang.queue, priority, need)
    if not in_quota and is_borrow_paused(gang, state.now_s):
        return []
    lower = lower_priority(state, rules, gang, priority, in_quota=in_quota)

    def over_limit_without(units: Sequence[Unit]) -> bool:
        return state.tree.over_limit(gang.queue, need, total(u.amount for u in units)) is not None

    chosen: list[Unit] = []
    for unit in sorted(rules.evictable(lower, gang), key=lambda u: u.order):
        if not over_limit_without(chosen):
            break
        if unit not in chosen:
            chosen.extend(u for u in lower if unit.core and u.gang == unit.gang and not u.core and u not in chosen)
            chosen.append(unit)
    for unit in reversed(chosen[:]):
        rest = [u for u in chosen if u is not unit]
        alone = not unit.core and any(u.core and u.gang == unit.gang for u in rest)
        if not alone and not over_limit_without(rest):
            chosen = rest
    freed = total(u.amount for u in chosen)
    cheap = in_quota or freed.gpu_milli <= state.options.evict_ratio_max * need.gpu_milli
    return chosen if cheap and not over_limit_without(chosen) else []


class PlainEviction:
    """The evict action of one cycle, as ``Eviction``.

    Args:
        started: requests that this round has started, which are not evicted.
    """

    def __init__(self, state: SchedulerState, held: HeldNodes, started: AbstractSet[str]) -> None:
        self._state = state
        self._held = held
        self._rules = VictimRules(state, started)
        self._hopeless: set[tuple[str, int, PackingKey]] = set()

    @property
    def spared(self) -> bool:
        """Return True if a unit was not evicted only because this round has started it."""
        return self._rules.spared

    def prepare(self) -> None:
        """Do nothing: there is no table to update."""

    def queue_changed(self, queue: str) -> None:
        self._rules.queue_changed(queue)

    def units_evicted(self, units: Sequence[Unit]) -> None:
        self._rules.units_evicted(units)

    def clear_cache(self) -> None:
        self._hopeless.clear()

    def has_no_victims(self, request: Request) -> bool:
        """Return False: this implementation does not know before a search."""
        del request
        return False

    def plan(self, gang: Gang, requests: Sequence[Request], need: Amount) -> Plan | None:
        options = self._state.options
        if not (options.reclaim or options.preempt or options.reclaim_fair_share):
            return None
        key = (gang.queue, max(r.priority for r in requests), shapes_of(requests))
        if key in self._hopeless:
            return None
        keep = self._reservations_in_quota()
        plan = self._on_nodes_of_borrowers(gang, requests, need, keep)
        if plan is not None:
            return plan
        mark = self._state.transaction.mark()
        for pool in self._pools(gang, requests, need):
            plan = self._fewest(pool, requests, need, keep)
            if plan is None:
                continue
            if not pool.in_quota or self._rules.is_in_quota_at(gang, plan):
                return replace(plan, in_quota=pool.in_quota)
            self._state.transaction.rollback(mark)
        self._hopeless.add(key)
        return None

    def plan_below_limit(self, gang: Gang, requests: Sequence[Request], need: Amount) -> Plan | None:
        units = below_limit(self._state, self._rules, gang, requests, need)
        if not units:
            return None
        transaction = self._state.transaction
        mark = transaction.mark()
        for member in (m for unit in units for m in unit.members):
            transaction.release(member.request.shape, member.placement)
        placed = place_together(transaction, requests)
        if placed is None:
            transaction.rollback(mark)
            return None
        plan = Plan(placed=placed, evicted=tuple(units))
        borrowed = not any(unit.in_quota for unit in units) and not is_borrow_paused(gang, self._state.now_s)
        if borrowed or self._rules.is_in_quota_at(gang, plan):
            return plan
        transaction.rollback(mark)
        return None

    def _fewest(
        self, pool: VictimPool, requests: Sequence[Request], need: Amount, keep: Sequence[Reservation]
    ) -> Plan | None:
        def search() -> Plan | None:
            return find_victims(
                self._state.transaction,
                requests,
                pool.eligible,
                budgets=pool.budgets,
                asked=need,
                ratio_max=pool.ratio_max,
            )

        if not pool.in_quota:
            return search()
        with self._held.released(keep):
            return search()

    def _on_nodes_of_borrowers(
        self, gang: Gang, requests: Sequence[Request], need: Amount, keep: Sequence[Reservation]
    ) -> Plan | None:
        if len(keep) == len(self._held.reservations):
            return None
        priority = max(r.priority for r in requests)
        if not self._rules.would_be_in_quota(gang.queue, priority, need):
            return None
        with self._held.released(keep):
            placed = place_together(self._state.transaction, requests)
        return Plan(placed=placed, in_quota=True) if placed is not None else None

    def _reservations_in_quota(self) -> list[Reservation]:
        return [reservation for reservation in self._held.reservations if self._starts_in_quota(reservation)]

    def _starts_in_quota(self, reservation: Reservation) -> bool:
        """Return True if the reserved gang will be in quota beside the units that still run at its start."""
        state = self._state
        requests = [request for on in reservation.requests_on.values() for request in on]
        queue, priority = state.registry.gangs[reservation.gang].queue, max(r.priority for r in requests)
        ahead = total(
            unit.amount
            for unit in self._rules.units(queue)
            if unit.in_quota
            and unit.priority >= priority
            and any(
                estimated_end_s(m, state.now_s, state.options.default_run_time_s) > reservation.start_s
                for m in unit.members
            )
        )
        return state.tree.within_guaranteed(queue, ahead, state.need(requests))

    def _pools(self, gang: Gang, requests: Sequence[Request], need: Amount) -> Iterator[VictimPool]:
        """Yield the pools of victims that the gang may evict, strongest right first, and last with guarded units."""
        priority = max(r.priority for r in requests)
        if self._rules.would_be_in_quota(gang.queue, priority, need):
            yield from self._victims(gang, priority, need, in_quota=True)
            if not self._rules.are_small(requests):
                return
            yield from self._victims(gang, priority, need, in_quota=True, beside=True)
        yield from self._victims(gang, priority, need, in_quota=False)

    def _victims(
        self, gang: Gang, priority: int, need: Amount, *, in_quota: bool, beside: bool = False
    ) -> Iterator[VictimPool]:
        state, rules = self._state, self._rules
        own = lower_priority(state, rules, gang, priority, in_quota=in_quota)
        budgets: dict[str, float] = {}
        if in_quota:
            units, ratio_max = [*reclaimable(state, rules, gang, need), *own], math.inf
        elif is_borrow_paused(gang, state.now_s):
            return
        else:
            others, budgets = above_fair_share(state, rules, gang, need)
            units, ratio_max = [*own, *others], state.options.evict_ratio_max
        if beside:
            units = rules.beside_own_slices(gang.queue, units)
        eligible = rules.evictable(units, gang)
        if eligible:
            yield VictimPool(in_quota=in_quota, eligible=tuple(eligible), budgets=budgets, ratio_max=ratio_max)
        everything = rules.evictable(units, gang, guarded=True) if in_quota else eligible
        if len(everything) > len(eligible):
            yield VictimPool(in_quota=in_quota, eligible=tuple(everything), budgets=budgets, ratio_max=ratio_max)
