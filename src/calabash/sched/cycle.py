"""One cycle: the line is walked once, fairest queue first, and everything that can be decided now is decided.

Decision table for the gang whose turn it is (``need`` is its core, or one surplus member):

| state | event in this cycle | decision |
|---|---|---|
| members missing | - | Pending ``gang_incomplete`` |
| ``need`` over a limit | lower priority of its queue makes way | Evict each victim, Bind each member |
| ``need`` over a limit | - | Pending ``queue_over_limit`` |
| fits now | placed all or nothing | Bind each member |
| does not fit, has a claim | fewest victims found | Evict each victim, Bind each member |
| does not fit, whole devices | moves found | Move each, Bind |
| does not fit, head of the line | start estimated | reservation; Pending |
| does not fit | - | Pending with the dominant cause |

The queue whose use is smallest against its share goes next (``QueueTree.pressure``); within a queue higher priority,
then earlier submission. Cores go before surplus. What was found infeasible stays so until something is released, so a
repeated shape costs a look into a set.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

from calabash.model.errors import Reason
from calabash.sched.actions.defragment import Occupant, find_moves
from calabash.sched.actions.preempt import BORROW_PAUSE_S, find_victims
from calabash.sched.actions.reserve import HeldNodes, Reservation, reserve
from calabash.sched.actions.victims import VictimRules
from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.decisions import Bind, Decision, Defer, Evict, Explanation, Move, Request, Running
from calabash.sched.explain.why import Why
from calabash.sched.queues.fairshare import Amount
from calabash.sched.queues.registry import Gang, Portion, Unit, place_together, portion_of, portions_of, total

if TYPE_CHECKING:
    from calabash.sched.scheduler import Scheduler

Blocked = tuple[Gang, tuple[Request, ...], Reason]
_RANK = attrgetter("rank")


class Cycle:
    """The working state of one cycle."""

    def __init__(self, scheduler: Scheduler, now_s: float) -> None:
        self._s = scheduler
        self._now_s = now_s
        self._rules = VictimRules(scheduler.tree, scheduler.registry, scheduler.options, now_s)
        self._held = HeldNodes(
            scheduler.board, scheduler.registry, now_s=now_s, default_run_time_s=scheduler.options.default_run_time_s
        )
        self._why = Why(scheduler, self._held)
        self._decisions: list[Decision] = []
        self._infeasible: set[tuple[Shape, ...]] = set()
        self._hopeless: set[tuple[str, int, tuple[Shape, ...]]] = set()
        self._blocked: list[Blocked] = []
        self._starts = 0
        self._known: dict[tuple[object, ...], Reason] = {}
        self._known_at = 0
        self._evicted: list[str] = []

    # ---- the walk -------------------------------------------------------------------------------------------------

    def run(self) -> tuple[Decision, ...]:
        try:
            for portion in self._line():
                self._turn(portion)
        finally:
            self._s.room.unhold()
        self._s.reservations = list(self._held.reservations)
        self._s.board.commit()
        for gang, requests, reason in self._blocked:
            self._report(gang, requests, reason)
        for request_id in self._evicted:
            gang = self._s.registry.gang_of(request_id)
            self._report(gang, portion_of(gang, request_id), Reason.NO_CAPACITY)
        return tuple(self._decisions)

    def _line(self) -> Iterator[Portion]:
        """Gangs with something to start, the fairest queue first; shares move while the walk goes on."""
        lines: dict[str, list[Portion]] = {}
        for gang in self._s.registry.queued.values():
            lines.setdefault(gang.queue, []).extend(portions_of(gang))
        for line in lines.values():
            line.sort(key=_RANK, reverse=True)
        heap = [(self._pressure(queue, line), queue) for queue, line in lines.items()]
        heapq.heapify(heap)
        while heap:
            _, queue = heapq.heappop(heap)
            line = lines[queue]
            pressure = self._pressure(queue, line)
            if heap and heap[0] < (pressure, queue):
                heapq.heappush(heap, (pressure, queue))
                continue
            # Nothing moves while portions of one shape are refused: the queue keeps its turn without a new look.
            starts, need = self._starts, self._need(line[-1].requests)
            while line and starts == self._starts and self._need(line[-1].requests) == need:
                yield line.pop()
            if line:
                heapq.heappush(heap, (self._pressure(queue, line), queue))

    def _pressure(self, queue: str, line: Sequence[Portion]) -> tuple[float, ...]:
        return self._s.tree.pressure(queue, self._need(line[-1].requests))

    def _need(self, requests: Sequence[Request]) -> Amount:
        if len(requests) == 1:
            return self._s.charge_of(requests[0].shape)
        return total(self._s.charge_of(a.shape) for a in requests)

    def _turn(self, portion: Portion) -> None:
        if self._known_at != self._starts:
            self._known.clear()
            self._known_at = self._starts
        kind = self._kind(portion)
        reason = self._known.get(kind) if kind else None
        if reason is None:
            reason = self._attempt(portion.gang, portion.requests)
            if kind and reason:
                self._known[kind] = reason
        if reason is not None:
            self._blocked.append((portion.gang, portion.requests, reason))

    def _kind(self, portion: Portion) -> tuple[object, ...] | None:
        """Portions of one kind fare alike while nothing starts. None: this one is unlike any other."""
        gang = portion.gang
        if len(portion.requests) > 1 or gang.incomplete or gang.missing > 1:
            return None
        reservations = self._held.reservations
        if any(r.gang == gang.key for r in reservations):
            return None
        request = portion.requests[0]
        start_s = min((r.start_s for r in reservations), default=None)
        short = start_s is not None and request.run_time_s is not None and self._now_s + request.run_time_s <= start_s
        paused = gang.evicted_at_s is not None and self._now_s < gang.evicted_at_s + BORROW_PAUSE_S
        return (gang.queue, request.priority, request.shape, gang.missing, short, paused, len(reservations))

    def _attempt(self, gang: Gang, requests: tuple[Request, ...]) -> Reason | None:
        """Start it if there is a way; else why not."""
        if gang.incomplete:
            return Reason.GANG_INCOMPLETE
        if len(requests) < gang.missing:
            return Reason.NO_CAPACITY  # surplus of a core that did not start
        need = self._need(requests)
        if self._s.tree.over_limit(gang.queue, need) is not None:
            return None if self._replace(gang, requests, need) else Reason.QUEUE_OVER_LIMIT
        if self._place(requests) or self._claim(gang, requests, need) or self._defragment(gang, requests):
            return None
        self._reserve(gang, requests)
        return Reason.NO_CAPACITY

    # ---- ways to start --------------------------------------------------------------------------------------------

    def _place(self, requests: tuple[Request, ...]) -> bool:
        key = _shapes(requests)
        if key in self._infeasible:
            return False
        self._expect_end(requests, admitting=True)
        placed = place_together(self._s.board, requests)
        if placed is None:
            # A held node may admit a shorter request of the same shape, so only what needs no admission is known.
            if not self._held.reservations:
                self._infeasible.add(key)
            return False
        self._start(placed, after=())
        return True

    def _claim(self, gang: Gang, requests: tuple[Request, ...], need: Amount) -> bool:
        options = self._s.options
        if not (options.reclaim or options.preempt or options.reclaim_fair_share):
            return False
        key = (gang.queue, max(a.priority for a in requests), _shapes(requests))
        if key in self._hopeless:
            return False
        for pool in self._rules.of(gang, requests, need):
            self._expect_end(requests)
            if pool.in_quota:
                self._s.room.unhold()  # what is deserved is stronger than a promise
            victims = find_victims(
                self._s.board, requests, pool.eligible, budgets=pool.budgets, asked=need, ratio_max=pool.ratio_max
            )
            self._hold(self._held.reservations)
            if victims is None:
                continue
            self._evict_for(gang, requests, victims.evicted, victims.placements)
            return True
        self._hopeless.add(key)
        return False

    def _replace(self, gang: Gang, requests: tuple[Request, ...], need: Amount) -> bool:
        """At a limit, lower priority of the same queue makes way, even where devices are free."""
        units = self._rules.within_own(gang, requests, need)
        if not units:
            return False
        self._expect_end(requests)
        mark = self._s.board.mark()
        for member in (m for unit in units for m in unit.members):
            self._s.board.release(member.request.shape, member.placement)
        placed = place_together(self._s.board, requests)
        if placed is None:
            self._s.board.rollback(mark)
            return False
        self._evict_for(gang, requests, units, placed)
        return True

    def _evict_for(
        self,
        gang: Gang,
        requests: Sequence[Request],
        units: Sequence[Unit],
        placed: Sequence[tuple[Request, NodePlacement]],
    ) -> None:
        """Carry a plan that is on the board already into the books."""
        gone = []
        for unit in units:
            for member in unit.members:
                reason = Reason.PREEMPT if unit.queue == gang.queue else Reason.RECLAIM
                self._evict(member, reason, by=requests[0].id)
                gone.append(member.request.id)
        self._start(placed, after=tuple(gone))
        self._released()

    def _defragment(self, gang: Gang, requests: tuple[Request, ...]) -> bool:
        options = self._s.options
        request = requests[0]
        if len(requests) != 1 or options.defragment_moves_max < 1 or not request.shape.whole:
            return False
        if request.shape.gpu_count < options.defragment_gpu_count_min:
            return False
        key = ("\0moves", request.priority, (request.shape,))
        if key in self._hopeless:
            return False
        self._expect_end(requests)
        moves = find_moves(
            self._s.board,
            self._s.room,
            request.shape,
            lambda row: [self._occupant(r, request) for r in self._s.registry.on_node.get(row, {}).values()],
            moves_max=options.defragment_moves_max,
            cost_max_milli=options.defragment_cost_max_milli,
            move_cost_milli=options.move_cost_milli,
        )
        if moves is None:
            self._hopeless.add(key)
            return False
        for occupant, placement in moves.moved:
            running = self._s.registry.gang_of(occupant.id).running[occupant.id]
            node = self._s.cluster.names[placement.node]
            self._s.registry.move(replace(running, placement=placement, node=node))
            self._decisions.append(Move(id=occupant.id, node=node, placement=placement, by=request.id))
        self._start([(request, moves.placement)], after=tuple(o.id for o, _ in moves.moved))
        self._released()
        return True

    def _occupant(self, running: Running, request: Request) -> Occupant:
        ripe = running.started_at_s + self._s.options.min_run_time_s <= self._now_s
        return Occupant(
            id=running.request.id,
            shape=running.request.shape,
            placement=running.placement,
            movable=running.request.movable and ripe and running.request.priority <= request.priority,
        )

    # ---- reservations ---------------------------------------------------------------------------------------------

    def _kept(self, gang: Gang) -> Reservation | None:
        """The promise that the gang has from an earlier cycle, if it can still be kept."""
        reservation = next((r for r in self._s.reservations if r.gang == gang.key), None)
        if reservation is None or reservation.start_s <= self._now_s:
            return None
        reserved = [a.id for requests in reservation.requests_on.values() for a in requests]
        if not all(request_id in gang.waiting for request_id in reserved):
            return None
        self._s.room.unhold()
        kept = reservation if self._held.holds(reservation) else None
        self._hold(self._held.reservations)
        return kept

    def _hold(self, reservations: list[Reservation]) -> None:
        self._held.reservations = reservations
        if reservations:
            self._s.room.hold(self._held)
        else:
            self._s.room.unhold()

    def _reserve(self, gang: Gang, requests: tuple[Request, ...]) -> None:
        """Promise the gang a start, if it is the head of the line and there will be one.

        A promise binds only those who come later in the line of this cycle.
        """
        if len(self._held.reservations) >= self._s.options.reservations or not gang.missing:
            return
        key = ("\0reserve", 0, _shapes(requests))
        if key in self._hopeless:
            return
        reservation = self._kept(gang) or self._promise(gang, requests)
        if reservation is None:
            self._hopeless.add(key)
        else:
            self._hold([*self._held.reservations, reservation])

    def _promise(self, gang: Gang, requests: tuple[Request, ...]) -> Reservation | None:
        running = [r for g in self._s.registry.gangs.values() for r in g.running.values()]
        self._expect_end(requests)
        return reserve(
            self._s.board,
            gang.key,
            requests,
            running,
            now_s=self._now_s,
            default_run_time_s=self._s.options.default_run_time_s,
        )

    # ---- books ----------------------------------------------------------------------------------------------------

    def _expect_end(self, requests: Sequence[Request], *, admitting: bool = False) -> None:
        """When the last of them would end, for admission to held nodes."""
        self._s.room.admitting = admitting
        times = [a.run_time_s for a in requests]
        known = [t for t in times if t is not None]
        self._s.room.ends_at_s = self._now_s + max(known) if len(known) == len(times) else None

    def _start(self, placed: Sequence[tuple[Request, NodePlacement]], *, after: tuple[str, ...]) -> None:
        for request, placement in placed:
            running = self._s.begin(request, placement, self._now_s)
            self._decisions.append(Bind(id=request.id, node=running.node, placement=placement, after=after))
        self._s.board.commit()
        self._starts += 1
        self._rules.touch(placed[0][0].queue)

    def _evict(self, member: Running, reason: Reason, *, by: str) -> None:
        self._s.end_place(member, self._now_s)
        self._rules.touch(member.request.queue)
        self._decisions.append(Evict(id=member.request.id, reason=reason, by=by))
        self._evicted.append(member.request.id)

    def _released(self) -> None:
        """Places changed hands: what did not fit before may fit now."""
        self._infeasible.clear()
        self._hopeless.clear()

    # ---- why not --------------------------------------------------------------------------------------------------

    def _report(self, gang: Gang, requests: Sequence[Request], reason: Reason) -> None:
        """Pending for each member that waits, when what blocks it is new."""
        for request in requests:
            if request.id in gang.waiting and self._s.newly_reported(request.id, reason):
                reported = self._why.blocked(gang, requests, request, reason)
                self._decisions.append(Defer(id=request.id, reason=reported.reason, explanation=reported))

    def explain(self, request_id: str) -> Explanation:
        """Why one request waits, from the arrays as they are."""
        gang = self._s.registry.gang_of(request_id)
        request = gang.waiting[request_id]
        self._held.reservations = list(self._s.reservations)
        requests = portion_of(gang, request_id)
        reason = Reason.NO_CAPACITY
        if gang.incomplete:
            reason = Reason.GANG_INCOMPLETE
        elif self._s.tree.over_limit(gang.queue, self._need(requests)) is not None:
            reason = Reason.QUEUE_OVER_LIMIT
        return self._why.blocked(gang, requests, request, reason)


def _shapes(requests: Sequence[Request]) -> tuple[Shape, ...]:
    return (requests[0].shape,) if len(requests) == 1 else tuple(a.shape for a in requests)
