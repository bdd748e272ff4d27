"""Scheduling rounds: each waiting start group is attempted once per round, in one cycle or in several of limited time.

Theory of operation. An attempt to place a start group may take milliseconds if it searches for victims, and thousands of start
groups may wait. A cycle with a ``CycleLimit`` therefore ends when its time is used up, and returns what it has decided. The
next cycle continues the round: it walks over the current state in the same order, and skips the start groups that the round has
attempted already. So a request that was submitted meanwhile is attempted when its position in the order is reached, and does
not wait for refused requests before it to be attempted again.

The time is divided between queues. In each cycle, all queues with start groups that were not attempted may use time up to the
same level: the least that one of them has used in this round, plus an equal part of the cycle's time. A queue whose requests
are expensive to decide therefore delays another queue by at most its part of a cycle and one attempt; the order within a queue
is kept. If a cycle cannot attempt everything, a request may start before one of another queue that precedes it in the order.
Reservations bind the start groups that come later in every cycle, whether or not the reserved gang is attempted in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from calabash.model.errors import Reason
from calabash.sched.queues.gang import Gang, Rank, StartGroup, start_groups_of

DEFAULT_LIMIT_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleLimit:
    """Time limit of one cycle.

    Args:
        clock: returns seconds of a clock that runs during a cycle, as ``time.perf_counter`` does.
        limit_s: time for attempts. A cycle may exceed it by one attempt, and by the time for sorting the start groups and
            explaining the refusals. If sorting takes longer than ``limit_s``, attempts may take as long as sorting.
    """

    clock: Callable[[], float]
    limit_s: float = DEFAULT_LIMIT_S


class SchedulingRound:
    """Progress of one round.

    Args:
        limit: time limit of each cycle; None if one cycle attempts everything.

    Attributes:
        cycles: number of cycles that have begun.
        complete: True if the last cycle left no start group without an attempt.
        started: IDs of requests that were started in this round; none of them is evicted or moved in it.
    """

    def __init__(self, limit: CycleLimit | None = None) -> None:
        self.cycles = 0
        self.complete = False
        self.started: set[str] = set()
        self._limit = limit
        self._attempted: dict[Rank, tuple[int, Reason | None]] = {}
        self._used_s: dict[str, float] = {}

    def walk(
        self, start_groups: Callable[[], Iterator[StartGroup]], gangs: Iterable[Gang]
    ) -> Iterator[tuple[StartGroup, bool, Reason | None]]:
        """Yield all waiting start groups in order, as (start group, attempt it now, reason why the round refused it).

        A start group that is neither to be attempted nor refused is left to a later cycle. The caller attempts the
        start group, and calls ``record``, before it takes the next one.

        Args:
            start_groups: returns an iterator over the waiting start groups in the order of attempts.
            gangs: gangs that have waiting members, in any order.
        """
        self.cycles += 1
        self.complete = True
        if self._limit is None:
            for start_group in start_groups():
                yield start_group, True, None
            return
        clock, called_s = self._limit.clock, self._limit.clock()
        unfinished = {gang.queue for gang in gangs if not all(map(self._was_attempted, start_groups_of(gang)))}
        level_s = min((self._used_s.get(queue, 0.0) for queue in unfinished), default=0.0)
        left_s: float | None = None
        for start_group in start_groups():
            if left_s is None:
                left_s = max(self._limit.limit_s, clock() - called_s)
                level_s += left_s / max(1, len(unfinished))
            if self._was_attempted(start_group):
                yield start_group, False, self._attempted[start_group.rank][1]
                continue
            used_s = self._used_s.get(start_group.gang.queue, 0.0)
            attempt = left_s > 0 and used_s < level_s
            began_s = clock() if attempt else 0.0
            yield start_group, attempt, None
            if attempt:
                took_s = clock() - began_s
                self._used_s[start_group.gang.queue] = used_s + took_s
                left_s -= took_s
            else:
                self.complete = False

    def record(self, start_group: StartGroup, reason: Reason | None) -> None:
        """Record the outcome of an attempt: the reason why the start group was refused, None if it was started."""
        if self._limit is not None:
            self._attempted[start_group.rank] = (start_group.gang.version, reason)

    def _was_attempted(self, start_group: StartGroup) -> bool:
        """Return True if the round has attempted the start group, and its gang has not changed since the attempt."""
        attempted = self._attempted.get(start_group.rank)
        return attempted is not None and attempted[0] == start_group.gang.version
