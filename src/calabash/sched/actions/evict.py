"""Evict: the fewest victims that reclaim and preempt allow, the strongest right first."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

import numpy as np

from calabash.sched.actions.backfill import HeldNodes
from calabash.sched.actions.estimate import estimated_end_s
from calabash.sched.actions.packing import place_together
from calabash.sched.actions.plan import Plan, shapes_of
from calabash.sched.actions.preempt import below_limit
from calabash.sched.actions.reclaim import above_fair_share, is_any_above_fair_share, takes_back
from calabash.sched.actions.search import find_victims
from calabash.sched.actions.unit_pool import UnitPool
from calabash.sched.actions.victims import Right, VictimRules, paused
from calabash.sched.cluster.columns import Bools
from calabash.sched.cluster.shape import Shape
from calabash.sched.decisions import GangKey, Request
from calabash.sched.queues.fairshare import Amount, total
from calabash.sched.queues.gang import Gang, Unit
from calabash.sched.queues.reservation import Reservation
from calabash.sched.state import SchedulerState

POOLS_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimPool:
    """Units that may go for one gang, how much each queue may lose of the asked resource, and the ratio that is acceptable."""

    in_quota: bool
    pool: UnitPool
    ratio_max: float
    budgets: dict[str, float] = field(default_factory=dict)


class Eviction:
    """The action for one cycle; what no victims help stays so until something is freed.

    Args:
        begun: requests that this cycle has started, which it does not evict.
    """

    def __init__(self, state: SchedulerState, held: HeldNodes, begun: AbstractSet[str]) -> None:
        self._state = state
        self._held = held
        self._rules = VictimRules(state, begun)
        self._hopeless: set[tuple[str, int, tuple[Shape, ...]]] = set()
        # Queues and priorities for which there is no victim, whatever is asked for, unless it would be in quota.
        self._no_victims: set[tuple[str, int]] = set()
        self._above_fair: bool | None = None  # some queue is above its fair share; None: to be computed
        self._pools_of: dict[Hashable, UnitPool] = {}
        self._in_quota: dict[GangKey, tuple[Reservation, int, bool]] = {}

    @property
    def spared(self) -> bool:
        """Return True if something was not evicted only because this cycle has started it."""
        return self._rules.spared

    def prepare(self) -> None:
        """Look at what runs if much of it is new, so that the first request that evicts does not wait for it."""
        options = self._state.options
        if (options.reclaim or options.preempt or options.reclaim_fair_share) and self._state.registry.has_changed_much:
            self._state.units.sync(self._state.registry)

    def touch(self, queue: str) -> None:
        """Something in the queue started or stopped."""
        self._rules.touch(queue)
        self._no_victims.clear()
        self._above_fair = None

    def left(self, gone: Sequence[Unit]) -> None:
        """These units were evicted."""
        self._rules.left(gone)

    def forget(self) -> None:
        """Places changed hands."""
        self._hopeless.clear()
        self._no_victims.clear()
        self._above_fair = None

    def has_no_victims(self, request: Request) -> bool:
        """Return True if it is known that there is no victim for a request that starts alone."""
        who = (request.queue, request.priority)
        if who not in self._no_victims:
            return False
        managed = any(self._state.tree.form.managed)
        return not (managed and self._rules.would_be_in_quota(*who, self._state.need((request,))))

    def plan(self, gang: Gang, requests: Sequence[Request], need: Amount) -> Plan | None:
        """Room for the portion by evicting others."""
        options = self._state.options
        if not (options.reclaim or options.preempt or options.reclaim_fair_share):
            return None
        priority = requests[0].priority if len(requests) == 1 else max(r.priority for r in requests)
        who = (gang.queue, priority)
        if who in self._no_victims and not self._rules.would_be_in_quota(*who, need):
            return None
        key = (*who, shapes_of(requests))
        if key in self._hopeless:
            return None
        keep = self._promised_in_quota()
        plan = self._before_borrowed_promises(gang, requests, need, keep)
        if plan is not None:
            return plan
        mark = self._state.board.mark()
        searched = False
        for pool in self._pools(gang, requests, need):
            searched = True
            plan = self._fewest(pool, requests, need, keep)
            if plan is None:
                continue
            if not pool.in_quota or self._rules.is_in_quota_at(gang, plan.placed, plan.evicted):
                return replace(plan, in_quota=pool.in_quota)
            self._state.board.rollback(mark)
        self._hopeless.add(key)
        if not searched and self._has_no_victims(gang, priority, need):
            self._no_victims.add(who)
        return None

    def _has_no_victims(self, gang: Gang, priority: int, need: Amount) -> bool:
        """Return True if other gangs of the queue and priority that would borrow find no victim either, where this one has
        found none: what they may evict depends on what they ask for only if a queue is above its fair share."""
        if paused(gang, self._state.now_s) or self._rules.table.rows_of(gang.key):
            return False
        if self._above_fair is None:
            self._above_fair = is_any_above_fair_share(self._state)
        return not self._above_fair and not self._rules.would_be_in_quota(gang.queue, priority, need)

    def plan_below_limit(self, gang: Gang, requests: Sequence[Request], need: Amount) -> Plan | None:
        """At a limit, lower priority of the same queue makes way, even where devices are free."""
        units = below_limit(self._state, self._rules, gang, requests, need)
        if not units:
            return None
        board = self._state.board
        mark = board.mark()
        for member in (m for unit in units for m in unit.members):
            board.release(member.request.shape, member.placement)
        placed = place_together(board, requests)
        if placed is None:
            board.rollback(mark)
            return None
        in_quota = self._rules.is_in_quota_at(gang, placed, units)
        if not in_quota and (paused(gang, self._state.now_s) or any(unit.in_quota for unit in units)):
            board.rollback(mark)
            return None
        return Plan(placed=placed, evicted=tuple(units))

    def _fewest(
        self, pool: VictimPool, requests: Sequence[Request], need: Amount, keep: Sequence[Reservation]
    ) -> Plan | None:
        def search() -> Plan | None:
            return find_victims(
                self._state.board,
                requests,
                pool.pool,
                budgets=pool.budgets,
                asked=need,
                ratio_max=pool.ratio_max,
                state=self._trials_depend_on(requests, pool.ratio_max),
            )

        if not pool.in_quota:
            return search()
        with self._held.lifted(keep):
            return search()

    def _trials_depend_on(self, requests: Sequence[Request], ratio_max: float) -> Hashable | None:
        """Return what a trial depends on beside its node and the units there. Places of MIG profiles depend on more."""
        cluster = self._state.cluster
        if cluster.mig_states or cluster.mig_coming or any(r.shape.mig_profile for r in requests):
            return None
        return (ratio_max, self._held.nodes)

    def _before_borrowed_promises(
        self, gang: Gang, requests: Sequence[Request], need: Amount, keep: Sequence[Reservation]
    ) -> Plan | None:
        """Room for what its queue is guaranteed on devices that are held for gangs that would borrow them."""
        if len(keep) == len(self._held.reservations):
            return None
        priority = max(r.priority for r in requests)
        if not self._rules.would_be_in_quota(gang.queue, priority, need):
            return None
        with self._held.lifted(keep):
            placed = place_together(self._state.board, requests)
        return Plan(placed=placed, in_quota=True) if placed is not None else None

    def _promised_in_quota(self) -> list[Reservation]:
        """The promises to gangs that start within what their queue is guaranteed: these hold against everybody behind them."""
        return [reservation for reservation in self._held.reservations if self._starts_in_quota(reservation)]

    def _starts_in_quota(self, reservation: Reservation) -> bool:
        """Return True if the promised gang will be within what its queue is guaranteed, beside what still runs then."""
        queue = self._state.registry.gangs[reservation.gang].queue
        version, known = self._rules.version(queue), self._in_quota.get(reservation.gang)
        if known is None or known[0] is not reservation or known[1] != version:
            known = self._in_quota[reservation.gang] = (reservation, version, self._is_within(reservation))
        return known[2]

    def _is_within(self, reservation: Reservation) -> bool:
        state = self._state
        if not any(state.tree.form.managed):
            return False
        requests = [request for on in reservation.requests_on.values() for request in on]
        queue, priority = state.registry.gangs[reservation.gang].queue, max(r.priority for r in requests)
        ahead = total(
            unit.amount
            for unit in self._rules.in_quota_of(queue, priority)
            if any(
                estimated_end_s(m, state.now_s, state.options.default_run_time_s) > reservation.start_s
                for m in unit.members
            )
        )
        return state.tree.within_guaranteed(queue, ahead, state.need(requests))

    def _pools(self, gang: Gang, requests: Sequence[Request], need: Amount) -> Iterator[VictimPool]:
        """Yield the victims that the gang may have, by the strongest right that it has; last with those that are guarded.

        Requests that are charged by the number of their slices may be in quota on some devices only: then follow the
        victims beside such slices of their queue, and those that a gang may have that borrows.
        """
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
        """Yield the victims by one right; ``beside``: on devices where small slices of the queue are in quota."""
        state, rules = self._state, self._rules
        budgets: dict[str, float] = {}
        if in_quota:
            others = takes_back(state, rules, gang, need)
            right = Right(queue=gang.queue, priority=priority, in_quota=True, others=others, beside=beside)
        elif paused(gang, state.now_s):
            return
        else:
            budgets = above_fair_share(state, gang, need)
            right = Right(queue=gang.queue, priority=priority, in_quota=False, others=frozenset(budgets))
        ratio_max = math.inf if in_quota else state.options.evict_ratio_max
        eligible, kind = rules.eligible(right, gang)
        size = int(np.count_nonzero(eligible))
        if size:
            pool = self._pool(kind, eligible)
            yield VictimPool(in_quota=in_quota, pool=pool, budgets=budgets, ratio_max=ratio_max)
        if not in_quota:
            return
        everything, kind = rules.eligible(right, gang, guarded=True)
        if int(np.count_nonzero(everything)) > size:
            pool = self._pool(kind, everything)
            yield VictimPool(in_quota=in_quota, pool=pool, budgets=budgets, ratio_max=ratio_max)

    def _pool(self, kind: Hashable, chosen: Bools) -> UnitPool:
        """Return the pool of some rows, the same one for the same kind as long as it is worth it."""
        pool, marks = self._pools_of.pop(kind, None), self._rules.marks()
        if pool is None or not pool.follow(chosen, marks):
            cluster = self._state.cluster
            pool = UnitPool(self._rules.table, cluster.node_count, cluster.width, self._rules.unit)
            pool.follow(chosen, marks)
        while len(self._pools_of) >= POOLS_MAX:
            del self._pools_of[next(iter(self._pools_of))]
        self._pools_of[kind] = pool
        return pool
