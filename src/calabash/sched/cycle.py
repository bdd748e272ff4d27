"""One cycle: the line is walked once, fairest queue first, and everything that can be decided now is decided.

Decision table for the gang whose turn it is (``need`` is its core, or one surplus member):

| state | event in this cycle | decision |
|---|---|---|
| members missing | - | Pending ``gang_incomplete`` |
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
from calabash.model.units import format_mib
from calabash.sched.claims import Claims
from calabash.sched.decisions import Ask, Bind, Decision, Evict, Explanation, Move, Pending, Running
from calabash.sched.defrag import Occupant, find_moves
from calabash.sched.explain import PASSING, NodeVerdict, changes_for, explanation, judge
from calabash.sched.fairshare import Amount
from calabash.sched.gangs import Gang, Portion, place_together, portion_of, portions_of, total
from calabash.sched.preempt import CLAIM_PAUSE_S, find_victims
from calabash.sched.queues import OverLimit
from calabash.sched.reservation import Held, Reservation, reserve
from calabash.sched.shape import NodePlacement, Shape

if TYPE_CHECKING:
    from calabash.sched.scheduler import Scheduler

Blocked = tuple[Gang, tuple[Ask, ...], Reason]
_PLACE_IN_LINE = attrgetter("place_in_line")


class Cycle:
    """The working state of one cycle."""

    def __init__(self, scheduler: Scheduler, now_s: float) -> None:
        self._s = scheduler
        self._now_s = now_s
        self._claims = Claims(scheduler.tree, scheduler.book, scheduler.options, now_s)
        self._held = Held(
            scheduler.board, scheduler.book, now_s=now_s, default_run_time_s=scheduler.options.default_run_time_s
        )
        self._decisions: list[Decision] = []
        self._infeasible: set[tuple[Shape, ...]] = set()
        self._hopeless: set[tuple[str, int, tuple[Shape, ...]]] = set()
        self._blocked: list[Blocked] = []
        self._starts = 0
        self._known: dict[tuple[object, ...], Reason] = {}
        self._known_at = 0
        self._evicted: list[str] = []
        self._verdicts: dict[Shape, tuple[NodeVerdict, tuple[str, ...]]] = {}

    # ---- the walk -------------------------------------------------------------------------------------------------

    def run(self) -> tuple[Decision, ...]:
        try:
            for portion in self._line():
                self._turn(portion)
        finally:
            self._s.room.unhold()
        self._s.reservations = list(self._held.reservations)
        self._s.board.commit()
        for gang, asks, reason in self._blocked:
            self._tell(gang, asks, reason)
        for ask_id in self._evicted:
            gang = self._s.book.gang_of(ask_id)
            self._tell(gang, portion_of(gang, ask_id), Reason.NO_CAPACITY)
        return tuple(self._decisions)

    def _line(self) -> Iterator[Portion]:
        """Gangs with something to start, the fairest queue first; shares move while the walk goes on."""
        lines: dict[str, list[Portion]] = {}
        for gang in self._s.book.gangs.values():
            if gang.waiting:
                lines.setdefault(gang.queue, []).extend(portions_of(gang))
        for line in lines.values():
            line.sort(key=_PLACE_IN_LINE, reverse=True)
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
            starts, need = self._starts, self._need(line[-1].asks)
            while line and starts == self._starts and self._need(line[-1].asks) == need:
                yield line.pop()
            if line:
                heapq.heappush(heap, (self._pressure(queue, line), queue))

    def _pressure(self, queue: str, line: Sequence[Portion]) -> tuple[float, ...]:
        return self._s.tree.pressure(queue, self._need(line[-1].asks))

    def _need(self, asks: Sequence[Ask]) -> Amount:
        if len(asks) == 1:
            return self._s.charge_of(asks[0].shape)
        return total(self._s.charge_of(a.shape) for a in asks)

    def _turn(self, portion: Portion) -> None:
        if self._known_at != self._starts:
            self._known.clear()
            self._known_at = self._starts
        kind = self._kind(portion)
        reason = self._known.get(kind) if kind else None
        if reason is None:
            reason = self._attempt(portion.gang, portion.asks)
            if kind and reason:
                self._known[kind] = reason
        if reason is not None:
            self._blocked.append((portion.gang, portion.asks, reason))

    def _kind(self, portion: Portion) -> tuple[object, ...] | None:
        """Portions of one kind fare alike while nothing starts. None: this one is unlike any other."""
        gang = portion.gang
        if len(portion.asks) > 1 or gang.incomplete or gang.missing > 1:
            return None
        reservations = self._held.reservations
        if any(r.gang == gang.key for r in reservations):
            return None
        ask = portion.asks[0]
        start_s = min((r.start_s for r in reservations), default=None)
        short = start_s is not None and ask.run_time_s is not None and self._now_s + ask.run_time_s <= start_s
        paused = gang.evicted_at_s is not None and self._now_s < gang.evicted_at_s + CLAIM_PAUSE_S
        return (gang.queue, ask.priority, ask.shape, gang.missing, short, paused, len(reservations))

    def _attempt(self, gang: Gang, asks: tuple[Ask, ...]) -> Reason | None:
        """Start it if there is a way; else why not."""
        if gang.incomplete:
            return Reason.GANG_INCOMPLETE
        if len(asks) < gang.missing:
            return Reason.NO_CAPACITY  # surplus of a core that did not start
        need = self._need(asks)
        if self._s.tree.over_limit(gang.queue, need) is not None:
            return Reason.QUEUE_OVER_LIMIT
        if self._place(asks) or self._claim(gang, asks, need) or self._defragment(gang, asks):
            return None
        self._reserve(gang, asks)
        return Reason.NO_CAPACITY

    # ---- ways to start --------------------------------------------------------------------------------------------

    def _place(self, asks: tuple[Ask, ...]) -> bool:
        key = _shapes(asks)
        if key in self._infeasible:
            return False
        self._expect_end(asks, admitting=True)
        placed = place_together(self._s.board, asks)
        if placed is None:
            # A held node may admit a shorter request of the same shape, so only what needs no admission is known.
            if not self._held.reservations:
                self._infeasible.add(key)
            return False
        self._start(placed, after=())
        return True

    def _claim(self, gang: Gang, asks: tuple[Ask, ...], need: Amount) -> bool:
        options = self._s.options
        if not (options.reclaim or options.preempt or options.reclaim_fair_share):
            return False
        key = (gang.queue, max(a.priority for a in asks), _shapes(asks))
        if key in self._hopeless:
            return False
        for claim in self._claims.of(gang, asks, need):
            self._expect_end(asks)
            if claim.in_quota:
                self._s.room.unhold()  # what is deserved is stronger than a promise
            victims = find_victims(
                self._s.board, asks, claim.eligible, budgets=claim.budgets, asked=need, ratio_max=claim.ratio_max
            )
            self._hold(self._held.reservations)
            if victims is None:
                continue
            gone = []
            for unit in victims.evicted:
                for member in unit.members:
                    reason = Reason.PREEMPT if unit.queue == gang.queue else Reason.RECLAIM
                    self._evict(member, reason, by=asks[0].id)
                    gone.append(member.ask.id)
            self._start(list(victims.placements), after=tuple(gone))
            self._released()
            return True
        self._hopeless.add(key)
        return False

    def _defragment(self, gang: Gang, asks: tuple[Ask, ...]) -> bool:
        options = self._s.options
        ask = asks[0]
        if len(asks) != 1 or options.defragment_moves_max < 1 or not ask.shape.whole:
            return False
        if ask.shape.gpu_count < options.defragment_gpu_count_min:
            return False
        key = ("\0moves", ask.priority, (ask.shape,))
        if key in self._hopeless:
            return False
        self._expect_end(asks)
        moves = find_moves(
            self._s.board,
            self._s.room,
            ask.shape,
            lambda row: [self._occupant(r, ask) for r in self._s.book.on_node.get(row, {}).values()],
            moves_max=options.defragment_moves_max,
            cost_max_milli=options.defragment_cost_max_milli,
            move_cost_milli=options.move_cost_milli,
        )
        if moves is None:
            self._hopeless.add(key)
            return False
        for occupant, placement in moves.moved:
            running = self._s.book.gang_of(occupant.id).running[occupant.id]
            node = self._s.cluster.names[placement.node]
            self._s.book.move(replace(running, placement=placement, node=node))
            self._decisions.append(Move(id=occupant.id, node=node, placement=placement, by=ask.id))
        self._start([(ask, moves.placement)], after=tuple(o.id for o, _ in moves.moved))
        self._released()
        return True

    def _occupant(self, running: Running, ask: Ask) -> Occupant:
        ripe = running.started_at_s + self._s.options.min_run_time_s <= self._now_s
        return Occupant(
            id=running.ask.id,
            shape=running.ask.shape,
            placement=running.placement,
            movable=running.ask.movable and ripe and running.ask.priority <= ask.priority,
        )

    # ---- reservations ---------------------------------------------------------------------------------------------

    def _kept(self, gang: Gang) -> Reservation | None:
        """The promise that the gang has from an earlier cycle, if it can still be kept."""
        reservation = next((r for r in self._s.reservations if r.gang == gang.key), None)
        if reservation is None or reservation.start_s <= self._now_s:
            return None
        reserved = [a.id for asks in reservation.asks_on.values() for a in asks]
        if not all(ask_id in gang.waiting for ask_id in reserved):
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

    def _reserve(self, gang: Gang, asks: tuple[Ask, ...]) -> None:
        """Promise the gang a start, if it is the head of the line and there will be one.

        A promise binds only those who come later in the line of this cycle.
        """
        if len(self._held.reservations) >= self._s.options.reservations or not gang.missing:
            return
        key = ("\0reserve", 0, _shapes(asks))
        if key in self._hopeless:
            return
        reservation = self._kept(gang) or self._promise(gang, asks)
        if reservation is None:
            self._hopeless.add(key)
        else:
            self._hold([*self._held.reservations, reservation])

    def _promise(self, gang: Gang, asks: tuple[Ask, ...]) -> Reservation | None:
        running = [r for g in self._s.book.gangs.values() for r in g.running.values()]
        self._expect_end(asks)
        return reserve(
            self._s.board,
            gang.key,
            asks,
            running,
            now_s=self._now_s,
            default_run_time_s=self._s.options.default_run_time_s,
        )

    # ---- books ----------------------------------------------------------------------------------------------------

    def _expect_end(self, asks: Sequence[Ask], *, admitting: bool = False) -> None:
        """When the last of them would end, for admission to held nodes."""
        self._s.room.admitting = admitting
        times = [a.run_time_s for a in asks]
        known = [t for t in times if t is not None]
        self._s.room.ends_at_s = self._now_s + max(known) if len(known) == len(times) else None

    def _start(self, placed: Sequence[tuple[Ask, NodePlacement]], *, after: tuple[str, ...]) -> None:
        for ask, placement in placed:
            running = self._s.begin(ask, placement, self._now_s)
            self._decisions.append(Bind(id=ask.id, node=running.node, placement=placement, after=after))
        self._s.board.commit()
        self._starts += 1
        self._claims.touch(placed[0][0].queue)

    def _evict(self, member: Running, reason: Reason, *, by: str) -> None:
        self._s.end_place(member, self._now_s)
        self._claims.touch(member.ask.queue)
        self._decisions.append(Evict(id=member.ask.id, reason=reason, by=by))
        self._evicted.append(member.ask.id)

    def _released(self) -> None:
        """Places changed hands: what did not fit before may fit now."""
        self._infeasible.clear()
        self._hopeless.clear()

    # ---- why not --------------------------------------------------------------------------------------------------

    def _tell(self, gang: Gang, asks: Sequence[Ask], reason: Reason) -> None:
        """Pending for each member that waits, when what blocks it is new."""
        for ask in asks:
            if ask.id in gang.waiting and self._s.told_is_new(ask.id, reason):
                told = self.explain_blocked(gang, asks, ask, reason)
                self._decisions.append(Pending(id=ask.id, reason=told.reason, explanation=told))

    def explain(self, ask_id: str) -> Explanation:
        """Why one request waits, from the arrays as they are."""
        gang = self._s.book.gang_of(ask_id)
        ask = gang.waiting[ask_id]
        self._held.reservations = list(self._s.reservations)
        asks = portion_of(gang, ask_id)
        reason = Reason.NO_CAPACITY
        if gang.incomplete:
            reason = Reason.GANG_INCOMPLETE
        elif self._s.tree.over_limit(gang.queue, self._need(asks)) is not None:
            reason = Reason.QUEUE_OVER_LIMIT
        return self.explain_blocked(gang, asks, ask, reason)

    def explain_blocked(self, gang: Gang, asks: Sequence[Ask], ask: Ask, reason: Reason) -> Explanation:
        if reason is Reason.GANG_INCOMPLETE:
            there = gang.required - gang.incomplete
            return explanation(
                reason,
                f"gang {gang.key[1]} waits for members: {there} of {gang.required} have come",
                changes=(f"would be tried once {gang.incomplete} more members are submitted",),
            )
        need = self._need(asks)
        over = self._s.tree.over_limit(gang.queue, need)
        if over is not None:
            return _over_limit(over)
        return self._no_room(gang, asks, ask, need)

    def _verdict(self, shape: Shape) -> tuple[NodeVerdict, tuple[str, ...]]:
        """What the nodes say and what would help, once per shape: nothing moves while reasons are told."""
        found = self._verdicts.get(shape)
        if found is None:
            verdict = judge(self._s.room.compiled(shape))
            found = (verdict, () if verdict.fitting else changes_for(self._s.cluster, shape))
            self._verdicts[shape] = found
        return found

    def _no_room(self, gang: Gang, asks: Sequence[Ask], ask: Ask, need: Amount) -> Explanation:
        start_s = next((r.start_s for r in self._held.reservations if r.gang == gang.key), None)
        verdict, changes = self._verdict(ask.shape)
        dominant = verdict.dominant
        reason = dominant.reason if dominant else Reason.NO_CAPACITY
        summary = verdict.summary
        if verdict.fitting and len(asks) > 1:
            reason = Reason.NO_CAPACITY
            fitting = self._members_fitting(asks)
            summary = f"{fitting} of {len(asks)} members fit at once; {summary}"
            changes = (f"would start with min_member <= {fitting}",) if fitting else ()
        elif verdict.fitting and not self._held.reservations:
            reason, summary = Reason.NO_CAPACITY, f"{summary}: its turn comes in the next cycle"
        elif verdict.fitting:
            reason = Reason.RESERVED
            names = sorted({self._s.cluster.names[n] for r in self._held.reservations for n in r.asks_on})
            summary = f"{summary}, held for a reserved gang: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
        passing = reason in PASSING or reason is Reason.RESERVED
        if passing and reason is not Reason.RESERVED and self._over_deserved(gang, asks, need):
            guaranteed = self._s.tree.guaranteed(gang.queue)
            used = self._s.tree.used(gang.queue)
            reason = Reason.QUEUE_OVER_DESERVED
            summary = (
                f"queue {gang.queue} holds {_devices(used.gpu_milli)} of {_devices(guaranteed[0])} deserved devices"
                f" and asks {_devices(need.gpu_milli)} more, nothing is free to borrow; {summary}"
            )
        if passing:
            changes = (*changes, *self._give_back(gang, need))
        return replace(explanation(reason, summary, verdict, changes), estimated_start_s=start_s)

    def _over_deserved(self, gang: Gang, asks: Sequence[Ask], need: Amount) -> bool:
        priority = max(a.priority for a in asks)
        return any(self._s.tree.managed) and not self._claims.would_be_in_quota(gang.queue, priority, need)

    def _members_fitting(self, asks: Sequence[Ask]) -> int:
        mark = self._s.board.mark()
        self._s.room.admitting = False
        count = 0
        for ask in asks:
            placement = self._s.room.choose(ask.shape)
            if placement is None:
                break
            self._s.board.put(ask.shape, placement)
            count += 1
        self._s.board.rollback(mark)
        return count

    def _give_back(self, gang: Gang, need: Amount) -> tuple[str, ...]:
        """Queues that hold more than they are guaranteed, the largest borrower first."""
        tree = self._s.tree
        if not any(tree.managed):
            return ()
        borrowed = []
        for queue in tree.leaves():
            over = tree.used(queue).gpu_milli - tree.guaranteed(queue)[0]
            if queue != gang.queue and over >= need.gpu_milli > 0:
                borrowed.append((-over, queue))
        return tuple(
            f"would fit if queue {q} gave back {_devices(need.gpu_milli)} devices" for _, q in sorted(borrowed)[:2]
        )


def _shapes(asks: Sequence[Ask]) -> tuple[Shape, ...]:
    return (asks[0].shape,) if len(asks) == 1 else tuple(a.shape for a in asks)


def _over_limit(over: OverLimit) -> Explanation:
    unit = ("devices", "CPUs", "host memory")[over.resource]

    def show(amount: int) -> str:
        return format_mib(amount) if over.resource == 2 else f"{amount / 1000:g}"

    return explanation(
        Reason.QUEUE_OVER_LIMIT,
        f"queue {over.queue} holds {show(over.used)} of at most {show(over.limit)} {unit}, asked {show(over.asked)}",
        changes=(f"would be tried if the limit of queue {over.queue} were {show(over.used + over.asked)} {unit}",),
    )


def _devices(milli: float) -> str:
    return f"{milli / 1000:g}"
