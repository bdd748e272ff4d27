"""Backfill: others may use what is held for a reserved gang, as long as they do not delay it.

While nodes are held they are cordoned, so that the engine looks elsewhere at full speed; only when it finds nothing are the
held nodes tried one by one. A newcomer is admitted there when it ends before the start, or when the reserved members still
fit on that node at the start with the newcomer in place. So with run times that are not under-estimated, no backfilled
request moves the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from calabash.sched.actions.estimate import estimated_end_s
from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.decisions import GangKey, Request
from calabash.sched.queues.reservation import Reservation
from calabash.sched.state import SchedulerState

HELD_NODES_TRIED_MAX = 32
PLACES_MAX = 16  # tried on each of them


def ends_at_s(requests: Sequence[Request], now_s: float) -> float | None:
    """When the last of them would end if they started now; None when one gives no run time."""
    times = [r.run_time_s for r in requests]
    known = [t for t in times if t is not None]
    return now_s + max(known) if len(known) == len(times) else None


class HeldNodes:
    """The reservations that bind those who come later in this cycle, and the nodes held for them.

    Attributes:
        first_start_s: the earliest of their starts; None without one. gangs: for whom they are.
    """

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self.reservations: list[Reservation] = []
        self.first_start_s: float | None = None
        self.gangs: set[GangKey] = set()
        self._cordoned: list[int] = []
        self._tried: tuple[int, ...] = ()  # those of them where places are looked for

    @property
    def nodes(self) -> tuple[int, ...]:
        """Return the nodes that are held now."""
        return tuple(self._cordoned)

    def add(self, reservation: Reservation) -> None:
        """Hold its nodes from now on."""
        self.reservations.append(reservation)
        self.gangs.add(reservation.gang)
        first_s = self.first_start_s
        self.first_start_s = reservation.start_s if first_s is None else min(first_s, reservation.start_s)
        self._cordon(self.reservations)

    def release(self) -> None:
        """Hold nothing any more; the reservations stay known."""
        for node in self._cordoned:
            self._state.cluster.cordon(node, schedulable=True)
        self._cordoned, self._tried = [], ()

    @contextmanager
    def lifted(self, keep: Sequence[Reservation] = ()) -> Iterator[None]:
        """Hold nothing inside but for ``keep``: for what is stronger than a promise, and to look at a promise itself."""
        self.release()
        self._cordon(keep)
        try:
            yield
        finally:
            self.release()
            self._cordon(self.reservations)

    def choose(self, shape: Shape, ends_at_s: float | None) -> NodePlacement | None:
        """The best place for what would end then (None: unknown), on a held node only if it delays nobody there."""
        placement = self._state.room.choose(shape)
        return placement if placement is not None else next(self.admitted(shape, ends_at_s), None)

    def refuse(self, shape: Shape) -> bool:
        """Return True if it is plain that ``choose`` finds no place: the shape asks for more than nodes have free, held too."""
        engine = self._state.room.engine
        return engine.refuse(shape) and engine.maxima.refuse_on(shape, self._tried)

    def admitted(self, shape: Shape, ends_at_s: float | None) -> Iterator[NodePlacement]:
        """Yield the places on held nodes where it would delay nobody."""
        for node in self._tried:
            placement = self._choose_on_held(shape, node, ends_at_s)
            if placement is not None:
                yield placement

    def can_keep(self, reservation: Reservation) -> bool:
        """Whether the reserved members would still fit on their nodes at the start. Nothing must be held there."""
        return all(self._room_at_start(reservation, node) for node in reservation.requests_on)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _cordon(self, reservations: Sequence[Reservation]) -> None:
        cluster = self._state.cluster
        for node in dict.fromkeys(node for r in reservations for node in r.requests_on):
            if cluster.schedulable[node]:
                cluster.cordon(node)
                self._cordoned.append(node)
        self._tried = tuple(self._cordoned[:HELD_NODES_TRIED_MAX])

    def _choose_on_held(self, shape: Shape, node: int, ends_at_s: float | None) -> NodePlacement | None:
        """Return the first place on the node where it delays nobody: the best one, or on devices in another state."""
        if self._state.room.engine.maxima.refuse_on(shape, (node,)):
            return None
        self._state.cluster.cordon(node, schedulable=True)
        here = [r for r in self.reservations if node in r.requests_on]
        found = next(
            (
                placement
                for placement in self._state.room.places_on(shape, node, PLACES_MAX)
                if all(self._admits(r, shape, placement, ends_at_s) for r in here)
            ),
            None,
        )
        self._state.cluster.cordon(node)
        return found

    def _admits(
        self, reservation: Reservation, shape: Shape, placement: NodePlacement, ends_at_s: float | None
    ) -> bool:
        if ends_at_s is not None and ends_at_s <= reservation.start_s:
            return True
        board = self._state.board
        mark = board.mark()
        board.place(shape, placement)
        admitted = self._room_at_start(reservation, placement.node)
        board.rollback(mark)
        return admitted

    def _room_at_start(self, reservation: Reservation, node: int) -> bool:
        state = self._state
        mark = state.board.mark()
        for running in state.registry.on_node.get(node, {}).values():
            if estimated_end_s(running, state.now_s, state.options.default_run_time_s) <= reservation.start_s:
                state.board.release(running.request.shape, running.placement)
        fits = True
        for request in reservation.requests_on[node]:
            place = state.room.choose_on(request.shape, node)
            if place is None:
                fits = False
                break
            state.board.place(request.shape, place)
        state.board.rollback(mark)
        return fits
