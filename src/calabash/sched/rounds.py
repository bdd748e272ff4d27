"""A round looks at everything that waits; with a time limit per cycle it takes as many cycles as it needs.

Theory of operation. An attempt to start a portion may take milliseconds where it is searched for victims, and thousands of
portions may wait. A cycle with a ``CycleLimit`` therefore ends when its time is over, with what it has decided, and the next
cycle goes on with the round: it walks in the same order over the state as it is then, and skips what the round has looked at
already. So a request that has just been submitted is looked at as soon as its place in the order comes, and not behind those
before it that were refused.

The time is divided between queues. Each cycle, the queues in which something has not been looked at may use the same time, from
the least that one of them has used in this round. A queue whose requests are hard to decide about thus delays another one by
no more than a share of a cycle and one attempt at a time; within a queue the order of ``turns`` holds. A request may start
before one of another queue that comes earlier in the order and has not been looked at; where a cycle can look at everything,
this does not happen. What is held for a gang that is promised a start binds those who come later in every cycle, whether the
gang is looked at in it or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from calabash.model.errors import Reason
from calabash.sched.queues.gang import Gang, Portion, Rank, portions_of

DEFAULT_LIMIT_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleLimit:
    """Time limit of one cycle.

    Args:
        clock: seconds on any clock that does not stop while a cycle runs, as ``time.perf_counter``.
        limit_s: time for attempts, in seconds. A cycle exceeds it by one attempt at most, and by the time that it takes to
            sort what waits and to explain what was refused; when sorting takes longer than ``limit_s``, attempts may take
            as long.
    """

    clock: Callable[[], float]
    limit_s: float = DEFAULT_LIMIT_S


class SchedulingRound:
    """Progress of one round.

    Args:
        limit: of each cycle; None: a cycle looks at everything.

    Attributes:
        cycles: how many have begun. complete: whether everything that waited has been looked at.
        begun: ids that were started in this round; none of them is evicted or moved in it.
    """

    def __init__(self, limit: CycleLimit | None = None) -> None:
        self.cycles = 0
        self.complete = False
        self.begun: set[str] = set()
        self._limit = limit
        self._seen: dict[Rank, tuple[int, Reason | None]] = {}
        self._used_s: dict[str, float] = {}

    def walk(
        self, portions: Callable[[], Iterator[Portion]], gangs: Iterable[Gang]
    ) -> Iterator[tuple[Portion, bool, Reason | None]]:
        """Yield what waits in the order of ``portions``, whether to look at it now, and why the round has refused it.

        A portion that is neither looked at now nor refused is left to a later cycle. The caller looks at a portion, and calls
        ``saw``, before it asks for the next one.

        Args:
            portions: begins a walk in order.
            gangs: those that have members waiting, in any order.
        """
        self.cycles += 1
        self.complete = True
        if self._limit is None:
            for portion in portions():
                yield portion, True, None
            return
        clock, called_s = self._limit.clock, self._limit.clock()
        unseen = {gang.queue for gang in gangs if not all(map(self._has_seen, portions_of(gang)))}
        level_s = min((self._used_s.get(queue, 0.0) for queue in unseen), default=0.0)
        left_s: float | None = None
        for portion in portions():
            if left_s is None:
                left_s = max(self._limit.limit_s, clock() - called_s)
                level_s += left_s / max(1, len(unseen))
            if self._has_seen(portion):
                yield portion, False, self._seen[portion.rank][1]
                continue
            used_s = self._used_s.get(portion.gang.queue, 0.0)
            look = left_s > 0 and used_s < level_s
            began_s = clock() if look else 0.0
            yield portion, look, None
            if look:
                took_s = clock() - began_s
                self._used_s[portion.gang.queue] = used_s + took_s
                left_s -= took_s
            else:
                self.complete = False

    def saw(self, portion: Portion, reason: Reason | None) -> None:
        """Note the outcome of an attempt: the reason why the portion waits, None when it was started."""
        if self._limit is not None:
            self._seen[portion.rank] = (portion.gang.version, reason)

    def _has_seen(self, portion: Portion) -> bool:
        """Return True if the round has looked at the portion as it is now."""
        seen = self._seen.get(portion.rank)
        return seen is not None and seen[0] == portion.gang.version
