"""One cycle: the order of the queues is walked once, fairest queue first, and everything that can be decided now is decided.

Decision table for the portion whose turn it is (``need`` is the core of a gang, or one surplus member):

| state | event in this cycle | decision |
|---|---|---|
| members missing | - | Defer ``gang_incomplete`` |
| ``need`` over a limit | lower priority of its queue makes way | Evict each victim, Bind each member |
| ``need`` over a limit | - | Defer ``queue_over_limit`` |
| fits now | placed all or nothing | Bind each member |
| does not fit, may evict | fewest victims found | Evict each victim, Bind each member |
| does not fit, whole devices | moves found | Move each, Bind |
| does not fit, first to find no room | start estimated | reservation; Defer |
| does not fit | - | Defer with the dominant cause |

The queue whose use is smallest against its share goes next (``QueueTree.pressure``); within a queue higher priority, then the
owner whose turn it is (``turns``), then earlier submission. Cores go before surplus. What was found infeasible stays so until
something is freed, so a repeated shape costs a look into a set.

``run`` looks at everything that waits, or at a part of it (``rounds``). ``run_one`` looks at one portion only, which is the
same decision as long as nothing was freed since everything was looked at: all others were refused then and would be refused
again.

What a cycle starts it neither evicts nor moves. Where something was spared for that reason alone, another cycle is due.
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
from calabash.sched.actions.victims import paused
from calabash.sched.cluster.shape import Shape
from calabash.sched.decisions import Bind, Decision, Defer, Evict, Explanation, Move
from calabash.sched.explain.why import Why
from calabash.sched.queues.gang import Alike, Portion, portion_of
from calabash.sched.queues.reservation import Reservation
from calabash.sched.rounds import SchedulingRound
from calabash.sched.state import SchedulerState
from calabash.sched.walk import Walk, first_of

Blocked = tuple[Portion, Reason]


class Cycle:
    """The working state of one cycle.

    Args:
        of: the round that the cycle begins or goes on with.
    """

    def __init__(self, state: SchedulerState, of: SchedulingRound | None = None) -> None:
        self._state = state
        self._round = of or SchedulingRound()
        self._held = HeldNodes(state)
        self._allocate = Allocate(state, self._held)
        self._begun = self._round.begun
        self._evict = Eviction(state, self._held, self._begun)
        self._defragment = Defragment(state, self._begun)
        self._reserve = Reserve(state, self._held)
        self._decisions: list[Decision] = []
        self._blocked: list[Blocked] = []
        self._evicted: list[str] = []
        self._promised = {r.gang for r in state.reservations}
        self._walk = Walk(state)

    def run(self) -> tuple[Decision, ...]:
        """Decide about everything that waits, or about as much as the round allows in one cycle."""
        state, of = self._state, self._round
        if not of.cycles:
            state.unsettled = False
            state.refused.clear()
            state.cut.clear()
        self._evict.prepare()
        try:
            for portion, look, refused in of.walk(self._walk.portions, state.registry.queued.values()):
                if look:
                    of.saw(portion, self._turn(portion))
                elif portion.gang.key in self._promised and not portion.waits_for_core:
                    self._reserve.consider(portion.gang, portion.requests)
                if refused is not None:
                    self._blocked.append((portion, refused))
        finally:
            self._held.release()
        self._settle()
        state.passed = {gang: until_s for gang, until_s in state.passed.items() if until_s > state.now_s}
        return self._reported()

    def run_one(self, portion: Portion) -> tuple[Decision, ...]:
        """Decide about one portion; reservations of gangs before it in the order bind it."""
        state = self._state
        promised = [r for r in state.reservations if self._reserve.binding(r) and r.gang != portion.gang.key]
        behind = [r for r in promised if self._walk.comes_before(portion, state.registry.gangs[r.gang])]
        try:
            for reservation in promised:
                if reservation not in behind:
                    self._held.add(reservation)
            self._turn(portion)
            if self._blocked and self._blocked[0][1] is Reason.NO_CAPACITY and not portion.waits_for_core:
                self._reserve.consider(portion.gang, portion.requests)  # it may be the first of those that find no room
            for reservation in behind:
                self._keep(reservation)
        finally:
            self._held.release()
        kept = {r.gang for r in self._held.reservations}
        state.unsettled |= any(r.gang not in kept for r in promised)  # what it held is open to others
        self._settle()
        if self._walk.starts:
            state.unsettled |= any(self._yields(r, portion) for r in self._held.reservations)
        return self._reported()

    def _yields(self, reservation: Reservation, started: Portion) -> bool:
        """Whether the gang of a reservation comes later in the order now, because of what has started."""
        gang = self._state.registry.gangs[reservation.gang]
        if gang.queue != started.gang.queue:
            return False
        alone = len(self._state.tree.form.leaves) == 1
        return not alone or gang.owner == started.gang.owner

    def _settle(self) -> None:
        """Note whether what started leaves more to decide: another request may be the first that finds no room now, and has
        the right to the reservation, or one that has a reservation may be over the limit of its queue."""
        self._state.reservations = list(self._held.reservations)
        if not self._begun:
            return
        self._state.unsettled |= self._evict.spared or self._defragment.spared
        gangs = self._state.registry.gangs
        promised = [gangs[r.gang] for r in self._held.reservations]
        if not promised:
            return
        first: dict[tuple[str, str], Portion] = {}
        for portion, reason in self._blocked:
            of = (portion.gang.queue, portion.gang.owner)
            if reason is Reason.NO_CAPACITY and of not in first and portion.gang.key not in self._held.gangs:
                first[of] = portion
        self._state.unsettled |= any(self._walk.is_before(p, gang) for p in first.values() for gang in promised)
        self._state.unsettled |= any(self._is_over_limit(first_of(gang)) for gang in promised)

    def _is_over_limit(self, portion: Portion) -> bool:
        return self._state.tree.over_limit(portion.gang.queue, self._state.need(portion.requests)) is not None

    def _keep(self, reservation: Reservation) -> None:
        """A promise to a gang behind the portion: as it was, or made anew when the portion has taken something."""
        gang = self._state.registry.gangs[reservation.gang]
        if self._walk.starts:
            self._reserve.consider(gang, first_of(gang).requests)
        elif len(self._held.reservations) < self._state.options.reservations:
            self._held.add(reservation)

    # ---- one turn -------------------------------------------------------------------------------------------------

    def _turn(self, portion: Portion) -> Reason | None:
        """Start it, or note and return why it waits."""
        reason = Reason.NO_CAPACITY if self._is_hopeless(portion) else self._reason(portion)
        if reason is not None:
            self._blocked.append((portion, reason))
        return reason

    def _is_hopeless(self, portion: Portion) -> bool:
        """Return True if it is plain without an attempt that a request finds no room: it asks for more than any node has free,
        there is nothing to evict or move for it, and no promise is left to be made."""
        alike = portion.alike
        if alike is None or len(self._held.reservations) < self._state.options.reservations:
            return False
        request = portion.requests[0]
        if not self._evict.has_no_victims(request) or not self._held.refuse(request.shape):
            return False
        return not self._state.tree.is_limited(request.queue) and not self._defragment.may_help(request)

    def _reason(self, portion: Portion) -> Reason | None:
        """Start it if there is a way, unless one of its kind was refused; else return why not."""
        refused = self._state.refused
        kind = self._kind(portion)
        reason = refused.get(kind) if kind else None
        if reason is None:
            reason = self._attempt(portion)
            if kind and reason:
                refused[kind] = reason
        return reason

    def _kind(self, portion: Portion) -> tuple[object, ...] | None:
        """Portions of one kind fare alike while nothing starts. None: this one is unlike any other."""
        alike, gang, held = portion.alike, portion.gang, self._held
        if alike is None or gang.key in self._promised or gang.key in held.gangs:
            return None
        pausing = gang.evicted_at_s is not None and paused(gang, self._state.now_s)
        if held.first_start_s is None:
            return (alike, False, pausing, 0)
        run_time_s = portion.requests[0].run_time_s
        short = run_time_s is not None and self._state.now_s + run_time_s <= held.first_start_s
        return (alike, short, pausing, len(held.reservations))

    def _attempt(self, portion: Portion) -> Reason | None:
        """Start it if there is a way; else why not."""
        gang, requests = portion.gang, portion.requests
        if gang.incomplete:
            return Reason.GANG_INCOMPLETE
        if portion.waits_for_core:
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
            self._carry_out(plan)
            return None
        if reason is Reason.NO_CAPACITY:
            self._reserve.consider(gang, requests)
        return reason

    def _carry_out(self, plan: Plan) -> None:
        """The board holds the plan already; now the registry and the decisions follow."""
        state, by = self._state, plan.placed[0][0]
        gone: list[str] = []
        leaving = [(m, plan.in_quota and not unit.in_quota) for unit in plan.evicted for m in unit.members]
        for member, owed in leaving:
            state.registry.gang_of(member.request.id).evicted_at_s = state.now_s
            state.stop(member.request.id)
            reason = Reason.PREEMPT if member.request.queue == by.queue else Reason.RECLAIM
            self._decisions.append(Evict(id=member.request.id, reason=reason, by=by.id, owed=owed))
            gone.append(member.request.id)
        self._evicted.extend(gone)
        self._evict.left(plan.evicted)
        for running, placement in plan.moved:
            node = state.move(running, placement)
            state.moves_left -= 1
            self._evict.touch(running.request.queue)  # it is to be evicted from where it is now
            self._decisions.append(Move(id=running.request.id, node=node, placement=placement, by=by.id))
            gone.append(running.request.id)
        for request, placement in plan.placed:
            self._begun.add(request.id)
            running = state.begin(request, placement, state.now_s)
            self._decisions.append(Bind(id=request.id, node=running.node, placement=placement, after=tuple(gone)))
        state.board.commit()
        self._walk.started(by.queue)
        owners: dict[str, set[str]] = {}
        for unit in plan.evicted:
            owners.setdefault(unit.queue, set()).update(member.request.behalf for member in unit.members)
        for queue, of_queue in owners.items():
            self._walk.stopped(queue, sorted(of_queue))
        self._evict.touch(by.queue)
        if gone:
            for action in (self._allocate, self._evict, self._defragment, self._reserve):
                action.forget()

    # ---- reports --------------------------------------------------------------------------------------------------

    def _reported(self) -> tuple[Decision, ...]:
        """All decisions, with a Defer for each request whose reason to wait is new."""
        self._state.board.commit()
        why = Why(self._state)
        self._decisions.extend(self._deferred(self._blocked, why))
        waiting = (portion_of(self._state.registry.gang_of(name), name) for name in self._evicted)
        evicted = [(portion, Reason.NO_CAPACITY) for portion in waiting if portion]
        self._decisions.extend(self._deferred(evicted, why))
        return tuple(self._decisions)

    def _deferred(self, blocked: Iterable[Blocked], why: Why) -> Iterator[Defer]:
        reported = self._state.reported
        known: dict[tuple[Alike, Reason], dict[Shape, Explanation]] = {}
        promised = {r.gang for r in self._state.reservations}
        for portion, reason in blocked:
            new = [r for r in portion.requests if reported.get(r.id) is not reason and r.id in portion.gang.waiting]
            if not new:
                continue
            alike = None if portion.gang.key in promised else portion.alike
            told = known.setdefault((alike, reason), {}) if alike else {}
            for request in new:
                reported[request.id] = reason
                explanation = told.get(request.shape)
                if explanation is None:
                    explanation = why.blocked(portion.gang, portion.requests, request, reason)
                    told[request.shape] = explanation
                yield Defer(id=request.id, reason=explanation.reason, explanation=explanation)
