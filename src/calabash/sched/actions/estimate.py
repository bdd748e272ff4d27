"""When a portion could start: from the estimated ends of what runs.

Theory of operation (EASY backfilling, Lifka 1995; Mu'alem and Feitelson 2001). Running requests are released on the board in
the order of their estimated ends until the whole portion fits: that end is its start. An estimate that is exceeded is
stretched by a tenth (a second at least), and again once that is exceeded; in between it stands, and with it what was promised.
Requests without an estimate are taken to run ``default_run_time_s``. The number of releases is found by doubling and then
halving, and the board is rolled back. First it is counted after how many releases each shape fits as often as it is asked for.
With fewer nothing is tried; and where a count is exact, and one shape is asked for, that is the number.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from calabash.sched.actions.packing import is_exact, place_together
from calabash.sched.actions.plan import Placed
from calabash.sched.cluster.releases import Releases
from calabash.sched.decisions import Request, Running
from calabash.sched.state import SchedulerState

OVERDUE_STRETCH = 1.1
OVERDUE_STEP_MIN_S = 1.0
RELEASES_MAX = 8192


def estimated_end_s(running: Running, now_s: float, default_run_time_s: float) -> float:
    """Return when it is expected to end, after ``now_s``; the same until then."""
    run_time_s = running.request.run_time_s if running.request.run_time_s is not None else default_run_time_s
    began_s = running.started_at_s
    if began_s + run_time_s > now_s:
        return began_s + run_time_s
    least_s = OVERDUE_STEP_MIN_S / (OVERDUE_STRETCH - 1)  # below it a tenth is less than a step
    if run_time_s < least_s:
        steps = 1 + (min(now_s - began_s, least_s) - run_time_s) // OVERDUE_STEP_MIN_S
        run_time_s += steps * OVERDUE_STEP_MIN_S
    count = math.floor(math.log(max(1.0, (now_s - began_s) / run_time_s), OVERDUE_STRETCH))
    while began_s + run_time_s * OVERDUE_STRETCH**count <= now_s:  # the logarithm is rounded
        count += 1
    while count and began_s + run_time_s * OVERDUE_STRETCH ** (count - 1) > now_s:
        count -= 1
    return began_s + run_time_s * OVERDUE_STRETCH**count


def end_is_known(running: Running, now_s: float) -> bool:
    """Whether its run time was given and is not exceeded."""
    run_time_s = running.request.run_time_s
    return run_time_s is not None and now_s < running.started_at_s + run_time_s


def earliest_start(
    state: SchedulerState, requests: Sequence[Request], running: Iterable[Running]
) -> tuple[float, tuple[Placed, ...]] | None:
    """The start and the places then; None when it does not fit even on what is estimated to end. Board unchanged."""
    now_s, default_run_time_s = state.now_s, state.options.default_run_time_s
    # Ids are unique, so no two entries are compared beyond them.
    ends = sorted((estimated_end_s(r, now_s, default_run_time_s), r.request.id, r) for r in running)
    found = _Search(state, requests, [r for _, _, r in ends[:RELEASES_MAX]]).run()
    if found is None:
        return None
    released, placed = found
    return (ends[released - 1][0] if released else now_s), placed


class _Search:
    """The search for the number of releases after which requests fit."""

    def __init__(self, state: SchedulerState, requests: Sequence[Request], running: Sequence[Running]) -> None:
        self._board = state.board
        self._cluster = state.cluster
        self._requests = requests
        self._most = len(running)
        self._releases = Releases(state.cluster, [(r.request.shape, r.placement) for r in running])
        counts = Counter(request.shape for request in requests)
        self._counts = [(state.room.compiled(shape), count) for shape, count in counts.items()]

    def run(self) -> tuple[int, tuple[Placed, ...]] | None:
        """Return the number and the places; None if the requests do not fit after all releases."""
        least = self._least()
        if least is None:
            return None
        if is_exact(self._requests) and self._counts[0][0].counted:
            released = max(least, min(1, self._most))
            placed = self._fits_after(released)
            if placed is not None:
                return released, placed
        low, high = 0, 1
        found: tuple[Placed, ...] | None = None
        while found is None:
            high = min(high, self._most)
            found = self._fits_after(high) if high >= least else None
            if found is None:
                if high == self._most:
                    return None
                low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            trial = self._fits_after(middle) if middle >= least else None
            if trial is None:
                low = middle
            else:
                high, found = middle, trial
        return high, found

    def _least(self) -> int | None:
        """Return the least number of releases after which each shape fits as often as it is asked for, by itself.

        After fewer, the requests do not fit. MIG instances are not counted: then it is 0. None if they do not fit after all.
        """
        if self._releases.has_mig or any(compiled.shape.mig_profile for compiled, _ in self._counts):
            return 0
        try:
            if not self._are_enough(self._most):
                return None
            return bisect_left(range(self._most), True, key=self._are_enough)
        finally:
            self._releases.to(0)

    def _are_enough(self, released: int) -> bool:
        self._releases.to(released)
        rows = np.arange(self._cluster.node_count)
        return all(compiled.count(rows).sum() >= count for compiled, count in self._counts)

    def _fits_after(self, released: int) -> tuple[Placed, ...] | None:
        with self._releases.first(released):
            mark = self._board.mark()
            placed = place_together(self._board, self._requests)
            self._board.rollback(mark)
        return placed
