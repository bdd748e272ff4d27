"""Evict action: place a start group by evicting the fewest victims that the rules of reclaim and preempt allow."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

import numpy as np

from calabash.sched.actions.backfill import HeldNodes
from calabash.sched.actions.domain_eviction import cheapest_domain
from calabash.sched.actions.estimate import estimated_end_s
from calabash.sched.actions.packing import place_together
from calabash.sched.actions.plan import PackingKey, Plan, has_topology, shapes_of
from calabash.sched.actions.preempt import below_limit
from calabash.sched.actions.reclaim import above_fair_share, is_any_above_fair_share, may_reclaim
from calabash.sched.actions.unit_pool import UnitPool
from calabash.sched.actions.victim_search import find_victims
from calabash.sched.actions.victims import EvictionRight, VictimRules, is_borrow_paused
from calabash.sched.amounts import Amount, total
from calabash.sched.cluster.columns import Bools, Rows
from calabash.sched.decisions import GangKey, Request
from calabash.sched.queues.gang import Gang, Unit
from calabash.sched.queues.reservation import Reservation
from calabash.sched.state import SchedulerState

POOLS_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimPool:
    """Running units (``Unit``) that one gang may evict for one reason: reclaim, preemption or fair share.

    Args:
        in_quota: the gang would be within the guaranteed amount of its queue.
        pool: the units.
        ratio_max: largest ratio of evicted to requested device milli.
        budgets: largest amount that each queue may lose, in device milli, or in CPU milli if the gang needs no devices.
            Queues that are not in it may lose everything.
    """

    in_quota: bool
    pool: UnitPool
    ratio_max: float
    budgets: dict[str, float] = field(default_factory=dict)


class Eviction:
    """The evict action of one cycle.

    Start groups for which no victims were found are remembered until ``clear_cache``, so that the search is not repeated.

    Args:
        started: IDs of the requests that this round has started. They are not evicted in the same round.
    """

    def __init__(self, state: SchedulerState, held: HeldNodes, started: AbstractSet[str]) -> None:
        self._state = state
        self._held = held
        self._rules = VictimRules(state, started)
        self._hopeless: set[tuple[str, int, PackingKey]] = set()
        # Queues and priorities that have no victims, whatever the shape, for requests that would borrow.
        self._no_victims: set[tuple[str, int]] = set()
        self._above_fair: bool | None = None  # True if some queue is above its fair share; None if not yet computed
        self._pools_of: dict[Hashable, UnitPool] = {}
        self._in_quota: dict[GangKey, tuple[Reservation, int, bool]] = {}

    @property
    def spared(self) -> bool:
        """Return True if a unit was not evicted only because this round has started it."""
        return self._rules.spared

    def prepare(self) -> None:
        """Update the table of units if many gangs have changed, so that no attempt is delayed by the update."""
        options = self._state.options
        if (options.reclaim or options.preempt or options.reclaim_fair_share) and self._state.registry.has_changed_much:
            self._state.units.sync(self._state.registry)

    def queue_changed(self, queue: str) -> None:
        """Drop cached results that depend on a queue in which a request was started, stopped or moved."""
        self._rules.queue_changed(queue)
        self._no_victims.clear()
        self._above_fair = None

    def units_evicted(self, units: Sequence[Unit]) -> None:
        """Drop cached results that depend on units that were evicted."""
        self._rules.units_evicted(units)

    def clear_cache(self) -> None:
        """Forget the start groups for which no victims were found, because placements have changed."""
        self._hopeless.clear()
        self._no_victims.clear()
        self._above_fair = None

    def has_no_victims(self, request: Request) -> bool:
        """Return True if it is known that a request without a gang has no victims."""
        requester = (request.queue, request.priority)
        if requester not in self._no_victims:
            return False
        managed = any(self._state.tree.form.managed)
        return not (managed and self._rules.would_be_in_quota(*requester, self._state.need((request,))))

    def plan(self, gang: Gang, requests: Sequence[Request], need: Amount) -> Plan | None:
        """Return a plan that evicts victims and starts the requests, applied in the transaction; None if there is none.

        Args:
            need: charge of the requests.
        """
        options = self._state.options
        if not (options.reclaim or options.preempt or options.reclaim_fair_share):
            return None
        priority = requests[0].priority if len(requests) == 1 else max(r.priority for r in requests)
        requester = (gang.queue, priority)
        if requester in self._no_victims and not self._rules.would_be_in_quota(*requester, need):
            return None
        key = (*requester, shapes_of(requests))
        if key in self._hopeless:
            return None
        keep = self._reservations_in_quota()
        plan = self._on_nodes_of_borrowers(gang, requests, need, keep)
        if plan is not None:
            return plan
        mark = self._state.transaction.mark()
        searched = False
        for pool in self._pools(gang, requests, need):
            searched = True
            plan = self._fewest(pool, requests, need, keep)
            if plan is None:
                continue
            if not pool.in_quota or self._rules.is_in_quota_at(gang, plan.placed, plan.evicted):
                return replace(plan, in_quota=pool.in_quota)
            self._state.transaction.rollback(mark)
        self._hopeless.add(key)
        if not searched and self._has_no_victims(gang, priority, need):
            self._no_victims.add(requester)
        return None

    def _has_no_victims(self, gang: Gang, priority: int, need: Amount) -> bool:
        """Return True if no gang of this queue and priority that would borrow has victims.

        Called after no victims were found for ``gang``. The result is False if the other gangs may have victims all the
        same: if ``gang`` would be in quota, runs already or may not evict now (``is_borrow_paused``), or if some queue
        is above its fair share.

        Args:
            need: charge of the requests of ``gang``.
        """
        if is_borrow_paused(gang, self._state.now_s) or self._rules.table.rows_of(gang.key):
            return False
        if self._above_fair is None:
            self._above_fair = is_any_above_fair_share(self._state)
        return not self._above_fair and not self._rules.would_be_in_quota(gang.queue, priority, need)

    def plan_below_limit(self, gang: Gang, requests: Sequence[Request], need: Amount) -> Plan | None:
        """Return a plan for requests that would exceed the limit of their queue; None if there is none.

        The plan evicts units of lower priority in the queue, so that the queue stays within its limit.

        Args:
            need: charge of the requests.
        """
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
        in_quota = self._rules.is_in_quota_at(gang, placed, units)
        if not in_quota and (is_borrow_paused(gang, self._state.now_s) or any(unit.in_quota for unit in units)):
            transaction.rollback(mark)
            return None
        return Plan(placed=placed, evicted=tuple(units))

    def _fewest(
        self, pool: VictimPool, requests: Sequence[Request], need: Amount, keep: Sequence[Reservation]
    ) -> Plan | None:
        def search_in(units: UnitPool) -> Plan | None:
            return find_victims(
                self._state.transaction,
                requests,
                units,
                budgets=pool.budgets,
                asked=need,
                ratio_max=pool.ratio_max,
                state=None if near else self._trial_key(requests, pool.ratio_max),
            )

        def search() -> Plan | None:
            if not near:
                return search_in(pool.pool)
            return cheapest_domain(
                self._state.transaction, requests, pool.pool, lambda rows: self._on_rows(pool.pool, rows), search_in
            )

        near = has_topology(requests)

        if not pool.in_quota:
            return search()
        with self._held.released(keep):
            return search()

    def _on_rows(self, pool: UnitPool, rows: Rows) -> UnitPool:
        """Return a pool of those units of a pool that have members on some nodes."""
        cluster = self._state.cluster
        narrow = UnitPool(self._rules.table, cluster.node_count, cluster.width, self._rules.unit)
        narrow.select(pool.rows_on(rows), self._rules.marks())
        return narrow

    def _trial_key(self, requests: Sequence[Request], ratio_max: float) -> Hashable | None:
        """Return a key under which the results of trial evictions are cached.

        Trials of equal keys have equal results if their node and the units on the node are the same. The key is None if
        MIG is involved, because the results must not be cached then.
        """
        cluster = self._state.cluster
        if cluster.mig_states or cluster.mig_coming or any(r.shape.mig_profile for r in requests):
            return None
        return (ratio_max, self._held.nodes)

    def _on_nodes_of_borrowers(
        self, gang: Gang, requests: Sequence[Request], need: Amount, keep: Sequence[Reservation]
    ) -> Plan | None:
        """Return a plan that places requests on nodes that are held for gangs that would borrow.

        Returns None if the requests are not in quota, or if they do not fit there.

        Args:
            need: charge of the requests.
            keep: reservations in quota, whose nodes stay held.
        """
        if len(keep) == len(self._held.reservations):
            return None
        priority = max(r.priority for r in requests)
        if not self._rules.would_be_in_quota(gang.queue, priority, need):
            return None
        with self._held.released(keep):
            placed = place_together(self._state.transaction, requests)
        return Plan(placed=placed, in_quota=True) if placed is not None else None

    def _reservations_in_quota(self) -> list[Reservation]:
        """Return the reservations of gangs that will be in quota. Even requests in quota must respect them."""
        return [reservation for reservation in self._held.reservations if self._starts_in_quota(reservation)]

    def _starts_in_quota(self, reservation: Reservation) -> bool:
        """Return True if the reserved gang will be in quota at its start. Cached until its queue changes."""
        queue = self._state.registry.gangs[reservation.gang].queue
        version, known = self._rules.version(queue), self._in_quota.get(reservation.gang)
        if known is None or known[0] is not reservation or known[1] != version:
            known = self._in_quota[reservation.gang] = (reservation, version, self._is_within(reservation))
        return known[2]

    def _is_within(self, reservation: Reservation) -> bool:
        """Return True if the reserved gang will be in quota at its start; ``_starts_in_quota`` caches the result.

        Of the in-quota units of the queue, only those that are expected to run beyond the start count against the
        quota: the amounts of the others are free by then.
        """
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
        """Yield the pools of units that the gang may evict, each for one assumption on the gang's quota.

        Most gangs have one pool: that of a gang in quota, or that of a gang that borrows. Small slices (charged by
        their number) can be in quota on one device and borrowed on another. Gangs of small slices therefore have up to
        three pools: as a gang in quota on any device; as a gang in quota, restricted to devices where small slices of
        its queue are in quota already; and as a gang that borrows.
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
        """Yield the pool of the units that the gang may evict; for a gang in quota, then also one with guarded units.

        Guarded units (``Request.guarded``) are evicted last, and only if they are borrowed.

        Args:
            in_quota: the gang would be in quota; False if it would borrow.
            beside: take only units on devices where small slices of the gang's queue are in quota.
        """
        state, rules = self._state, self._rules
        budgets: dict[str, float] = {}
        if in_quota:
            others = may_reclaim(state, rules, gang, need)
            right = EvictionRight(queue=gang.queue, priority=priority, in_quota=True, others=others, beside=beside)
        elif is_borrow_paused(gang, state.now_s):
            return
        else:
            budgets = above_fair_share(state, gang, need)
            right = EvictionRight(queue=gang.queue, priority=priority, in_quota=False, others=frozenset(budgets))
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
        """Return a pool of the units in some rows of the unit table.

        The last pool of the same kind is updated if possible, which is cheaper than to create a pool. A pool cannot be
        updated after the rows of the table were renumbered.

        Args:
            kind: key of pools that are expected to have mostly the same rows.
            chosen: True for each row that is in the pool.
        """
        pool, marks = self._pools_of.pop(kind, None), self._rules.marks()
        if pool is None or not pool.select(chosen, marks):
            cluster = self._state.cluster
            pool = UnitPool(self._rules.table, cluster.node_count, cluster.width, self._rules.unit)
            pool.select(chosen, marks)
        while len(self._pools_of) >= POOLS_MAX:
            del self._pools_of[next(iter(self._pools_of))]
        self._pools_of[kind] = pool
        return pool
