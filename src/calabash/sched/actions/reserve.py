"""Reservations and backfill: the gang at the head of the line gets a promised start, others may not delay it.

Theory of operation (EASY backfilling, Lifka 1995; Mu'alem and Feitelson 2001). When the first gang of the line finds no
room, running requests are released on the board in the order of their estimated ends until the whole gang fits: that
end is its *start*, and the nodes it fits on are *held*. Estimates that are already exceeded are stretched by a tenth;
requests without an estimate are taken to run ``default_run_time_s``. The number of releases is found by doubling and
then halving, and the board is rolled back.

Backfill: later gangs may use any node that is not held. On a held node a newcomer is admitted when it ends before the
start, or when the reserved members still fit there at the start with the newcomer in place; both are checked on that
node alone. So with run times that are not under-estimated, no backfilled request moves the start. A reservation binds
those who come later in the line; it is kept between cycles while its members wait and it can be kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.decisions import Request, Running
from calabash.sched.queues.registry import Board, GangKey, GangRegistry, place_together

OVERDUE_STRETCH = 1.1
RELEASES_MAX = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A promised start: who, when, and which asks on which node."""

    gang: GangKey
    start_s: float
    requests_on: dict[int, tuple[Request, ...]]


def estimated_end_s(running: Running, now_s: float, default_run_time_s: float) -> float:
    """When it is expected to end; never in the past."""
    run_time_s = running.request.run_time_s if running.request.run_time_s is not None else default_run_time_s
    end_s = running.started_at_s + run_time_s
    while end_s <= now_s:
        run_time_s = max(
            run_time_s * OVERDUE_STRETCH, run_time_s + 1.0, (now_s - running.started_at_s) * OVERDUE_STRETCH
        )
        end_s = running.started_at_s + run_time_s
    return end_s


def reserve(
    board: Board,
    gang: GangKey,
    requests: Sequence[Request],
    running: Iterable[Running],
    *,
    now_s: float,
    default_run_time_s: float,
) -> Reservation | None:
    """The earliest start by estimates; None when it does not fit even on what is estimated to end. Board unchanged."""
    ends = sorted(
        ((estimated_end_s(r, now_s, default_run_time_s), r.request.id, r) for r in running), key=lambda e: e[:2]
    )
    ends = ends[:RELEASES_MAX]
    low, high = 0, 1
    found: list[tuple[Request, NodePlacement]] | None = None
    while found is None:
        high = min(high, len(ends))
        found = _fits_after(board, requests, [r for _, _, r in ends[:high]])
        if found is None:
            if high == len(ends):
                return None
            low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        trial = _fits_after(board, requests, [r for _, _, r in ends[:middle]])
        if trial is None:
            low = middle
        else:
            high, found = middle, trial
    requests_on: dict[int, tuple[Request, ...]] = {}
    for request, placement in found:
        requests_on[placement.node] = (*requests_on.get(placement.node, ()), request)
    start_s = ends[high - 1][0] if high else now_s
    return Reservation(gang=gang, start_s=start_s, requests_on=requests_on)


def _fits_after(
    board: Board, requests: Sequence[Request], released: Sequence[Running]
) -> list[tuple[Request, NodePlacement]] | None:
    mark = board.mark()
    for r in released:
        board.release(r.request.shape, r.placement)
    placed = place_together(board, requests)
    board.rollback(mark)
    return placed


class HeldNodes:
    """The held nodes of this cycle, and who is admitted there all the same."""

    def __init__(self, board: Board, registry: GangRegistry, *, now_s: float, default_run_time_s: float) -> None:
        self._board = board
        self._registry = registry
        self._now_s = now_s
        self._default_run_time_s = default_run_time_s
        self.reservations: list[Reservation] = []

    @property
    def nodes(self) -> list[int]:
        """Held rows, each once."""
        return list(dict.fromkeys(node for r in self.reservations for node in r.requests_on))

    def admits(self, shape: Shape, placement: NodePlacement, ends_at_s: float | None) -> bool:
        """Whether taking this place until then delays no reservation."""
        return all(
            self._admits(r, shape, placement, ends_at_s) for r in self.reservations if placement.node in r.requests_on
        )

    def holds(self, reservation: Reservation) -> bool:
        """Whether the reserved members would still fit on their nodes at the start."""
        return all(self._room_at_start(reservation, node) for node in reservation.requests_on)

    def _admits(
        self, reservation: Reservation, shape: Shape, placement: NodePlacement, ends_at_s: float | None
    ) -> bool:
        if ends_at_s is not None and ends_at_s <= reservation.start_s:
            return True
        mark = self._board.mark()
        self._board.place(shape, placement)
        admitted = self._room_at_start(reservation, placement.node)
        self._board.rollback(mark)
        return admitted

    def _room_at_start(self, reservation: Reservation, node: int) -> bool:
        mark = self._board.mark()
        for r in self._registry.on_node.get(node, {}).values():
            if estimated_end_s(r, self._now_s, self._default_run_time_s) <= reservation.start_s:
                self._board.release(r.request.shape, r.placement)
        fits = True
        for request in reservation.requests_on[node]:
            place = self._board.room.choose_on(request.shape, node)
            if place is None:
                fits = False
                break
            self._board.place(request.shape, place)
        self._board.rollback(mark)
        return fits
