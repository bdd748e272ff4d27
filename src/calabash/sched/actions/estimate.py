"""Estimated start of a start group that does not fit now, from the estimated ends of the running requests.

Theory of operation (EASY backfilling, Lifka 1995; Mu'alem and Feitelson 2001). Running requests are released in the order of
their estimated ends until all requests of the start group fit: the last of these ends is the start. A run time that is exceeded
is extended by a tenth (by a second at least), again and again; between extensions it is constant, and so are the reservations
that depend on it. Requests without a run time are taken to run ``default_run_time_s``.

The number of releases is found by doubling and then bisection, and the transaction is rolled back. A lower bound is computed
first: the number of releases after which each shape, on its own, fits as often as requested. For requests of one shape whose
count is exact, the lower bound is the result.
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
    """Return the time, after ``now_s``, at which a running request is expected to end.

    The result stays the same in later calls until that time has passed.

    Args:
        default_run_time_s: run time of a request that gave none.
    """
    run_time_s = running.request.run_time_s if running.request.run_time_s is not None else default_run_time_s
    began_s = running.started_at_s
    if began_s + run_time_s > now_s:
        return began_s + run_time_s
    least_s = OVERDUE_STEP_MIN_S / (OVERDUE_STRETCH - 1)  # for shorter run times a tenth is less than the smallest step
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
    """Return True if the request gave a run time and has not exceeded it."""
    run_time_s = running.request.run_time_s
    return run_time_s is not None and now_s < running.started_at_s + run_time_s


def earliest_start(
    state: SchedulerState, requests: Sequence[Request], running: Iterable[Running]
) -> tuple[float, tuple[Placed, ...]] | None:
    """Return the earliest estimated start of the requests, and their placements at that time; None if they never fit.

    The transaction is unchanged. At most RELEASES_MAX running requests are taken to end, to bound the time of the
    search.

    Args:
        running: running requests whose ends free capacity.
    """
    now_s, default_run_time_s = state.now_s, state.options.default_run_time_s
    # IDs are unique, so Running objects are never compared.
    ends = sorted((estimated_end_s(r, now_s, default_run_time_s), r.request.id, r) for r in running)
    found = _Search(state, requests, [r for _, _, r in ends[:RELEASES_MAX]]).run()
    if found is None:
        return None
    released, placed = found
    return (ends[released - 1][0] if released else now_s), placed


class _Search:
    """Search for the smallest number of running requests that must have ended before the waiting requests fit."""

    def __init__(self, state: SchedulerState, requests: Sequence[Request], running: Sequence[Running]) -> None:
        self._transaction = state.transaction
        self._cluster = state.cluster
        self._requests = requests
        self._most = len(running)
        self._releases = Releases(state.cluster, [(r.request.shape, r.placement) for r in running])
        counts = Counter(request.shape for request in requests)
        self._counts = [(state.placer.compiled(shape), count) for shape, count in counts.items()]

    def run(self) -> tuple[int, tuple[Placed, ...]] | None:
        """Return the number of running requests to release, and the placements of the waiting requests then.

        The result is None if the waiting requests do not even fit after all releases.
        """
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
        """Return a lower bound of the number of running requests that must be released before the waiting requests fit.

        After so many releases each shape, on its own, fits as often as it is requested. The bound is 0 if MIG instances
        are involved, because they cannot be counted. It is None if a shape does not even fit after all releases.
        """
        if self._releases.has_mig or any(compiled.shape.mig_profile for compiled, _ in self._counts):
            return 0
        try:
            if not self._are_enough(self._most):
                return None
            return bisect_left(range(self._most), True, key=self._are_enough)
        finally:
            self._releases.set_released(0)

    def _are_enough(self, released: int) -> bool:
        self._releases.set_released(released)
        rows = np.arange(self._cluster.node_count)
        return all(compiled.count(rows).sum() >= count for compiled, count in self._counts)

    def _fits_after(self, released: int) -> tuple[Placed, ...] | None:
        with self._releases.released(released):
            mark = self._transaction.mark()
            placed = place_together(self._transaction, self._requests)
            self._transaction.rollback(mark)
        return placed
