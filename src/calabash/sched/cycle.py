"""One scheduling cycle: attempt to start the waiting start groups in order, by allocation, eviction or defragmentation.

Decision table for one start group (the core of a gang, or one surplus member):

| state | found in this cycle | decision |
|---|---|---|
| members not submitted | - | Defer ``gang_incomplete`` |
| over a queue limit | victims of lower priority in its queue | Evict each victim, Bind each member |
| over a queue limit | - | Defer ``queue_over_limit`` |
| fits now | placements for all members | Bind each member |
| does not fit, may evict | victims | Evict each victim, Bind each member |
| does not fit, whole devices | moves | Move each, Bind |
| does not fit, first that does not | estimated start | reservation; Defer |
| does not fit | - | Defer with the dominant cause |

The queue whose use is smallest relative to its share is next (``QueueTree.pressure``). Within a queue the order is priority,
then cores before surplus, then the rank of the owner (``owner_order``), then submission. A refusal is remembered until
something is freed, so that an equivalent start group is refused without another attempt.

``run`` attempts all waiting start groups, or some of them (``rounds``). ``run_one`` attempts one start group only. Its decision
is the same as that of ``run`` if nothing was freed since all start groups were attempted, because the others would be refused
again.

A cycle neither evicts nor moves what it has started. If a victim was spared for that reason alone, another cycle is due.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from calabash.model.errors import Reason
from calabash.sched.actions.allocate import Allocate
from calabash.sched.actions.backfill import HeldNodes
from calabash.sched.actions.defragment import Defragment
from calabash.sched.actions.evict import Eviction
from calabash.sched.actions.plan import Plan
from calabash.sched.actions.reserve import Reserve
from calabash.sched.actions.victims import is_borrow_paused
from calabash.sched.cluster.shape import Shape
from calabash.sched.decisions import Bind, Decision, Defer, Evict, Explanation, Move
from calabash.sched.explain.explainer import Explainer
from calabash.sched.explain.verdicts import Verdicts
from calabash.sched.queues.gang import EquivalenceKey, StartGroup, start_group_of
from calabash.sched.queues.reservation import Reservation
from calabash.sched.rounds import SchedulingRound
from calabash.sched.scheduling_order import SchedulingOrder, first_start_group
from calabash.sched.state import SchedulerState

Blocked = tuple[StartGroup, Reason]


class Cycle:
    """Working state of one cycle.

    Args:
        verdicts: verdicts of the state's cluster, for explanations.
        round_: round to which the cycle belongs; None for a round of its own.
    """

    def __init__(self, state: SchedulerState, verdicts: Verdicts, round_: SchedulingRound | None = None) -> None:
        self._state = state
        self._verdicts = verdicts
        self._round = round_ or SchedulingRound()
        self._held = HeldNodes(state)
        self._allocate = Allocate(state, self._held)
        self._started = self._round.started
        self._evict = Eviction(state, self._held, self._started)
        self._defragment = Defragment(state, self._started)
        self._reserve = Reserve(state, self._held)
        self._decisions: list[Decision] = []
        self._blocked: list[Blocked] = []
        self._evicted: list[str] = []
        self._reserved_before = {r.gang for r in state.reservations}
        self._order = SchedulingOrder(state)

    def run(self) -> tuple[Decision, ...]:
        """Attempt all waiting start groups, or as many as the round allows in one cycle, and return the decisions."""
        state, round_ = self._state, self._round
        if not round_.cycles:
            state.unsettled = False
            state.refused.clear()
            state.cut.clear()
        self._evict.prepare()
        try:
            for start_group, attempt, refused in round_.walk(self._order.start_groups, state.registry.queued.values()):
                if attempt:
                    round_.record(start_group, self._try_to_start(start_group))
                elif start_group.gang.key in self._reserved_before and not start_group.waits_for_core:
                    self._reserve.reserve_for(start_group.gang, start_group.requests)
                if refused is not None:
                    self._blocked.append((start_group, refused))
        finally:
            self._held.release()
        self._update_unsettled()
        state.passed = {gang: until_s for gang, until_s in state.passed.items() if until_s > state.now_s}
        return self._reported()

    def run_one(self, start_group: StartGroup) -> tuple[Decision, ...]:
        """Attempt one start group and return the decisions.

        Nodes that are reserved for gangs before the start group in the scheduling order stay held.
        """
        state = self._state
        reservations = [r for r in state.reservations if self._reserve.is_binding(r) and r.gang != start_group.gang.key]
        behind = [r for r in reservations if self._order.comes_before(start_group, state.registry.gangs[r.gang])]
        try:
            for reservation in reservations:
                if reservation not in behind:
                    self._held.add(reservation)
            self._try_to_start(start_group)
            if self._blocked and self._blocked[0][1] is Reason.NO_CAPACITY and not start_group.waits_for_core:
                self._reserve.reserve_for(
                    start_group.gang, start_group.requests
                )  # it may be the first that does not fit
            for reservation in behind:
                self._renew(reservation)
        finally:
            self._held.release()
        kept = {r.gang for r in self._held.reservations}
        state.unsettled |= any(r.gang not in kept for r in reservations)  # their nodes are free for others
        self._update_unsettled()
        if self._order.starts:
            state.unsettled |= any(self._may_lose_precedence(r, start_group) for r in self._held.reservations)
        return self._reported()

    def _may_lose_precedence(self, reservation: Reservation, started: StartGroup) -> bool:
        """Return True if a gang with a reservation may come later in the scheduling order after a start group started.

        Args:
            started: the start group that was started.
        """
        gang = self._state.registry.gangs[reservation.gang]
        if gang.queue != started.gang.queue:
            return False
        alone = len(self._state.tree.form.leaves) == 1
        return not alone or gang.owner == started.gang.owner

    def _update_unsettled(self) -> None:
        """Store the reservations, and set ``SchedulerState.unsettled`` if another cycle may decide something.

        If this cycle has started something, another cycle may decide something in three cases:

        * a request was not evicted or moved only because this round has started it;
        * a gang without a reservation that does not fit now precedes a gang with one, and may be entitled to it;
        * a gang with a reservation is over the limit of its queue now.
        """
        self._state.reservations = list(self._held.reservations)
        if not self._started:
            return
        self._state.unsettled |= self._evict.spared or self._defragment.spared
        gangs = self._state.registry.gangs
        reserved = [gangs[r.gang] for r in self._held.reservations]
        if not reserved:
            return
        first: dict[tuple[str, str], StartGroup] = {}
        for start_group, reason in self._blocked:
            owner = (start_group.gang.queue, start_group.gang.owner)
            if reason is Reason.NO_CAPACITY and owner not in first and start_group.gang.key not in self._held.gangs:
                first[owner] = start_group
        self._state.unsettled |= any(self._order.is_before(p, gang) for p in first.values() for gang in reserved)
        self._state.unsettled |= any(self._is_over_limit(first_start_group(gang)) for gang in reserved)

    def _is_over_limit(self, start_group: StartGroup) -> bool:
        return self._state.tree.over_limit(start_group.gang.queue, self._state.need(start_group.requests)) is not None

    def _renew(self, reservation: Reservation) -> None:
        """Keep or recompute a reservation whose gang comes after the attempted start group in the scheduling order.

        The reservation is computed anew if the attempt has started something, because the free capacity is another
        then. Otherwise it is kept, unless there are ``Options.reservations`` reservations already.
        """
        gang = self._state.registry.gangs[reservation.gang]
        if self._order.starts:
            self._reserve.reserve_for(gang, first_start_group(gang).requests)
        elif len(self._held.reservations) < self._state.options.reservations:
            self._held.add(reservation)

    # ---- one attempt ----------------------------------------------------------------------------------------------

    def _try_to_start(self, start_group: StartGroup) -> Reason | None:
        """Place the start group, or record and return the reason why it waits."""
        reason = Reason.NO_CAPACITY if self._is_hopeless(start_group) else self._reason(start_group)
        if reason is not None:
            self._blocked.append((start_group, reason))
        return reason

    def _is_hopeless(self, start_group: StartGroup) -> bool:
        """Return True if a quick check shows that a start group of one request cannot be started.

        That is the case if the request needs more than any node has free, nothing can be evicted or moved for it, and
        no further reservation may be made.
        """
        if start_group.equivalence_key is None or len(self._held.reservations) < self._state.options.reservations:
            return False
        request = start_group.requests[0]
        if not self._evict.has_no_victims(request) or not self._held.fits_nowhere(request.shape):
            return False
        return not self._state.tree.is_limited(request.queue) and not self._defragment.may_help(request)

    def _reason(self, start_group: StartGroup) -> Reason | None:
        """Return the reason for which an equivalent start group was refused before.

        If there is none, attempt the start group, and return the reason why it waits; None if it was started.
        """
        refused = self._state.refused
        key = self._refusal_key(start_group)
        reason = refused.get(key) if key else None
        if reason is None:
            reason = self._attempt(start_group)
            if key and reason:
                refused[key] = reason
        return reason

    def _refusal_key(self, start_group: StartGroup) -> tuple[object, ...] | None:
        """Return a key under which the refusal of a start group is remembered for equivalent start groups.

        Start groups of equal keys have the same outcome as long as nothing starts. The key is None if the refusal must not
        be remembered.
        """
        equivalence_key, gang, held = start_group.equivalence_key, start_group.gang, self._held
        if equivalence_key is None or gang.key in self._reserved_before or gang.key in held.gangs:
            return None
        pausing = gang.evicted_at_s is not None and is_borrow_paused(gang, self._state.now_s)
        if held.first_start_s is None:
            return (equivalence_key, False, pausing, 0)
        run_time_s = start_group.requests[0].run_time_s
        short = run_time_s is not None and self._state.now_s + run_time_s <= held.first_start_s
        return (equivalence_key, short, pausing, len(held.reservations))

    def _attempt(self, start_group: StartGroup) -> Reason | None:
        """Place the start group if an action finds a plan, and return None.

        Otherwise make a reservation for it if possible, and return the reason why it waits.
        """
        gang, requests = start_group.gang, start_group.requests
        if gang.incomplete:
            return Reason.GANG_INCOMPLETE
        if start_group.waits_for_core:
            return Reason.NO_CAPACITY
        need = self._state.need(requests)
        if self._state.tree.over_limit(gang.queue, need) is not None:
            plan = self._evict.plan_below_limit(gang, requests, need)
            reason = Reason.QUEUE_OVER_LIMIT
        else:
            plan = (
                self._allocate.plan(requests)
                or self._evict.plan(gang, requests, need)
                or self._defragment.plan(requests)
            )
            reason = Reason.NO_CAPACITY
        if plan is not None:
            self._apply(plan)
            return None
        if reason is Reason.NO_CAPACITY:
            self._reserve.reserve_for(gang, requests)
        return reason

    def _apply(self, plan: Plan) -> None:
        """Update the registry and append the decisions of a plan that is applied in the transaction already."""
        state, by = self._state, plan.placed[0][0]
        displaced: list[str] = []
        victims = [(m, plan.in_quota and not unit.in_quota) for unit in plan.evicted for m in unit.members]
        for member, owed in victims:
            state.registry.gang_of(member.request.id).evicted_at_s = state.now_s
            state.stop(member.request.id)
            reason = Reason.PREEMPT if member.request.queue == by.queue else Reason.RECLAIM
            self._decisions.append(Evict(id=member.request.id, reason=reason, by=by.id, owed=owed))
            displaced.append(member.request.id)
        self._evicted.extend(displaced)
        self._evict.units_evicted(plan.evicted)
        for running, placement in plan.moved:
            node = state.move(running, placement)
            state.moves_left -= 1
            self._evict.queue_changed(running.request.queue)  # victims are known by their node
            self._decisions.append(Move(id=running.request.id, node=node, placement=placement, by=by.id))
            displaced.append(running.request.id)
        for request, placement in plan.placed:
            self._started.add(request.id)
            running = state.start(request, placement, state.now_s)
            self._decisions.append(Bind(id=request.id, node=running.node, placement=placement, after=tuple(displaced)))
        state.transaction.commit()
        self._order.started(by.queue)
        owners: dict[str, set[str]] = {}
        for unit in plan.evicted:
            owners.setdefault(unit.queue, set()).update(member.request.behalf for member in unit.members)
        for queue, of_queue in owners.items():
            self._order.stopped(queue, sorted(of_queue))
        self._evict.queue_changed(by.queue)
        if displaced:
            for action in (self._allocate, self._evict, self._defragment, self._reserve):
                action.clear_cache()

    # ---- reports --------------------------------------------------------------------------------------------------

    def _reported(self) -> tuple[Decision, ...]:
        """Return all decisions, with a Defer for each request whose reason to wait is new."""
        self._state.transaction.commit()
        explainer = Explainer(self._state, self._verdicts)
        self._decisions.extend(self._deferred(self._blocked, explainer))
        waiting = (start_group_of(self._state.registry.gang_of(name), name) for name in self._evicted)
        evicted = [(start_group, Reason.NO_CAPACITY) for start_group in waiting if start_group]
        self._decisions.extend(self._deferred(evicted, explainer))
        return tuple(self._decisions)

    def _deferred(self, blocked: Iterable[Blocked], explainer: Explainer) -> Iterator[Defer]:
        """Yield a Defer for each blocked request whose reason is new, or which past use begins or ceases to delay."""
        reported = self._state.reported
        known: dict[tuple[EquivalenceKey, Reason], dict[Shape, Explanation]] = {}
        reserved = {r.gang for r in self._state.reservations}
        for start_group, reason in blocked:
            told = (reason, explainer.is_behind_by_past_use(start_group))
            new = [r for r in start_group.requests if reported.get(r.id) != told and r.id in start_group.gang.waiting]
            if not new:
                continue
            key = None if start_group.gang.key in reserved else start_group.equivalence_key
            explanations = known.setdefault((key, reason), {}) if key else {}
            for request in new:
                reported[request.id] = told
                explanation = explanations.get(request.shape)
                if explanation is None:
                    explanation = explainer.blocked(start_group.gang, start_group.requests, request, reason)
                    explanations[request.shape] = explanation
                yield Defer(id=request.id, reason=explanation.reason, explanation=explanation)
