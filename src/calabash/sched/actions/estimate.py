"""When a portion could start: from the estimated ends of what runs.

Theory of operation (EASY backfilling, Lifka 1995; Mu'alem and Feitelson 2001). Running requests are released on the board in
the order of their estimated ends until the whole portion fits: that end is its start. Estimates that are already exceeded
are stretched by a tenth; requests without an estimate are taken to run ``default_run_time_s``. The number of releases is
found by doubling and then halving, and the board is rolled back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from calabash.sched.actions.packing import place_together
from calabash.sched.actions.plan import Placed
from calabash.sched.cluster.board import Board
from calabash.sched.decisions import Request, Running

OVERDUE_STRETCH = 1.1
RELEASES_MAX = 8192


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


def end_is_known(running: Running, now_s: float) -> bool:
    """Whether its run time was given and is not exceeded."""
    run_time_s = running.request.run_time_s
    return run_time_s is not None and now_s < running.started_at_s + run_time_s


def earliest_start(
    board: Board,
    requests: Sequence[Request],
    running: Iterable[Running],
    *,
    now_s: float,
    default_run_time_s: float,
) -> tuple[float, tuple[Placed, ...]] | None:
    """The start and the places then; None when it does not fit even on what is estimated to end. Board unchanged."""
    ends = sorted(
        ((estimated_end_s(r, now_s, default_run_time_s), r.request.id, r) for r in running), key=lambda e: e[:2]
    )
    ends = ends[:RELEASES_MAX]
    low, high = 0, 1
    found: tuple[Placed, ...] | None = None
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
    return (ends[high - 1][0] if high else now_s), found


def _fits_after(board: Board, requests: Sequence[Request], released: Sequence[Running]) -> tuple[Placed, ...] | None:
    mark = board.mark()
    for r in released:
        board.release(r.request.shape, r.placement)
    placed = place_together(board, requests)
    board.rollback(mark)
    return placed
