"""Backfill: requests may use nodes that are held for a reserved gang if they do not delay its start.

Held nodes are cordoned, so that the engine ignores them. Only if it finds no other node are the held nodes tried one by one. A
request is admitted on a held node if it ends before the start of the reservation, or if the reserved members still fit on the
node beside it when the reservation starts. So no backfilled request delays a reserved gang, unless its run time was
under-estimated.
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
PLACEMENTS_MAX = 16  # tried on each held node


def ends_at_s(requests: Sequence[Request], now_s: float) -> float | None:
    """Return the time at which the last of the requests ends if all start now; None if one of them gives no run time."""
    times = [r.run_time_s for r in requests]
    known = [t for t in times if t is not None]
    return now_s + max(known) if len(known) == len(times) else None


class HeldNodes:
    """Reservations that other requests of the cycle must respect, and the nodes that are held for the reservations.

    Attributes:
        first_start_s: earliest start of the reservations; None if there are none.
        gangs: keys of the reserved gangs.
    """

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self.reservations: list[Reservation] = []
        self.first_start_s: float | None = None
        self.gangs: set[GangKey] = set()
        self._cordoned: list[int] = []
        self._tried: tuple[int, ...] = ()  # the held nodes that are tried for backfill

    @property
    def nodes(self) -> tuple[int, ...]:
        """Return the rows of the nodes that are held now for reservations."""
        return tuple(self._cordoned)

    def add(self, reservation: Reservation) -> None:
        """Add a reservation and hold its nodes."""
        self.reservations.append(reservation)
        self.gangs.add(reservation.gang)
        first_s = self.first_start_s
        self.first_start_s = reservation.start_s if first_s is None else min(first_s, reservation.start_s)
        self._cordon(self.reservations)

    def release(self) -> None:
        """Release all held nodes, but keep the reservations in ``reservations``."""
        for node in self._cordoned:
            self._state.cluster.cordon(node, schedulable=True)
        self._cordoned, self._tried = [], ()

    @contextmanager
    def released(self, keep: Sequence[Reservation] = ()) -> Iterator[None]:
        """Let requests use the held nodes within the context, except those of the reservations in ``keep``."""
        self.release()
        self._cordon(keep)
        try:
            yield
        finally:
            self.release()
            self._cordon(self.reservations)

    def choose(self, shape: Shape, ends_at_s: float | None) -> NodePlacement | None:
        """Return the best placement for a shape: on a node that is not held, else on a held node that admits it.

        Args:
            ends_at_s: end of the request if it starts now; None if unknown.
        """
        placement = self._state.placer.choose(shape)
        return placement if placement is not None else next(self.backfill_placements(shape, ends_at_s), None)

    def fits_nowhere(self, shape: Shape) -> bool:
        """Return True if a quick check shows that the shape needs more than any node has free, held nodes included."""
        engine = self._state.placer.engine
        return engine.fits_nowhere(shape) and engine.maxima.exceeded_on(shape, self._tried)

    def backfill_placements(self, shape: Shape, ends_at_s: float | None) -> Iterator[NodePlacement]:
        """Yield a placement for each held node that admits the shape without delaying its reservations.

        Args:
            ends_at_s: end of the request if it starts now; None if unknown.
        """
        for node in self._tried:
            placement = self._choose_on_held(shape, node, ends_at_s)
            if placement is not None:
                yield placement

    def is_feasible(self, reservation: Reservation) -> bool:
        """Return True if the reserved members will fit on their nodes when the reservation starts.

        The nodes must not be held while this is called.
        """
        return all(self._fits_at_start(reservation, node) for node in reservation.requests_on)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _cordon(self, reservations: Sequence[Reservation]) -> None:
        cluster = self._state.cluster
        for node in dict.fromkeys(node for r in reservations for node in r.requests_on):
            if cluster.schedulable[node]:
                cluster.cordon(node)
                self._cordoned.append(node)
        self._tried = tuple(self._cordoned[:HELD_NODES_TRIED_MAX])

    def _choose_on_held(self, shape: Shape, node: int, ends_at_s: float | None) -> NodePlacement | None:
        """Return the best placement on a held node that delays no reservation, or None.

        At most PLACEMENTS_MAX placements are tried.

        Args:
            node: row of the held node.
            ends_at_s: end of the request if it starts now; None if unknown.
        """
        if self._state.placer.engine.maxima.exceeded_on(shape, (node,)):
            return None
        self._state.cluster.cordon(node, schedulable=True)
        here = [r for r in self.reservations if node in r.requests_on]
        found = next(
            (
                placement
                for placement in self._state.placer.placements_on(shape, node, PLACEMENTS_MAX)
                if all(self._admits(r, shape, placement, ends_at_s) for r in here)
            ),
            None,
        )
        self._state.cluster.cordon(node)
        return found

    def _admits(
        self, reservation: Reservation, shape: Shape, placement: NodePlacement, ends_at_s: float | None
    ) -> bool:
        """Return True if a request with this placement does not delay the reservation.

        Args:
            ends_at_s: end of the request if it starts now; None if unknown.
        """
        if ends_at_s is not None and ends_at_s <= reservation.start_s:
            return True
        transaction = self._state.transaction
        mark = transaction.mark()
        transaction.place(shape, placement)
        admitted = self._fits_at_start(reservation, placement.node)
        transaction.rollback(mark)
        return admitted

    def _fits_at_start(self, reservation: Reservation, node: int) -> bool:
        """Return True if the members for which a node is reserved will fit there when the reservation starts.

        Running requests that are expected to end before the start are left out.
        """
        state = self._state
        mark = state.transaction.mark()
        for running in state.registry.on_node.get(node, {}).values():
            if estimated_end_s(running, state.now_s, state.options.default_run_time_s) <= reservation.start_s:
                state.transaction.release(running.request.shape, running.placement)
        fits = True
        for request in reservation.requests_on[node]:
            placement = state.placer.choose_on(request.shape, node)
            if placement is None:
                fits = False
                break
            state.transaction.place(request.shape, placement)
        state.transaction.rollback(mark)
        return fits
