"""Detection of cycles that would decide nothing, so that the scheduler skips them.

Theory of operation. The decisions of a cycle depend on its inputs and on the time. The inputs are the arrays of the cluster,
the waiting and running requests, the queues, the reservations, and what callers set (moves that are left, MIG profiles of
waiting requests). They are compared by counters where there are counters (the change log of the arrays, the registry,
``SchedulerState.version``), else by value. The use and shares of queues and the tables of policies change with the registry
only. A cycle with the same inputs as the last one decides nothing: had the last cycle started a request or dropped a
reservation, the inputs would differ, and reasons to wait are reported once. The same holds if the last cycle changed no input
except that it made reservations: the next cycle keeps them, or computes equal ones from the same inputs.

With equal inputs, only time can change a decision. ``_change_times`` yields the times at which a rule may change its result;
the memory is valid until the first of them, which is the scheduler's next wake-up. Each time is computed exactly as the rule
computes it, so that the rule has its new result at that time. The memory is not used where results change continuously: where
shares depend on past use, and for policies with random choices. In any case it is dropped after ``AGE_MAX_S``, which limits the
effect of a rule that is missing here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from calabash.sched.actions.estimate import estimated_end_s
from calabash.sched.actions.victims import BORROW_PAUSE_S
from calabash.sched.decisions import Request, Running
from calabash.sched.state import SchedulerState

AGE_MAX_S = 30.0
ROUNDING_S = 0.001  # added to the time of a rule that changes its result after that time, not at it
Inputs = tuple[Any, ...]
"""Inputs of a cycle; the reservations are the last item."""


class CycleMemory:
    """Inputs of the last round, and the time until which another cycle with the same inputs decides nothing.

    Args:
        age_max_s: time after which the memory is dropped.
    """

    def __init__(self, state: SchedulerState, *, age_max_s: float = AGE_MAX_S) -> None:
        self._state = state
        self._age_max_s = age_max_s
        self._known: Inputs | None = None
        self._before: Inputs | None = None  # inputs at the begin of the round that is in progress
        self._between: Inputs = ()
        self._paused = False
        self._since_s = 0.0
        self._change_time_s: float | None = None  # computed on first use, because it is rarely needed

    def _inputs(self) -> Inputs:
        """Return the inputs of a cycle.

        The position in the change log is left out, because trial placements advance it too.
        """
        state = self._state
        return (
            state.version,
            state.registry.version,
            state.tree.past_use.version,
            state.moves_left,
            tuple(state.cluster.mig_coming),
            dict(state.passed),
            tuple(state.reservations),
        )

    def is_settled(self) -> bool:
        """Return True if no input has changed since the remembered cycle, which decided nothing.

        Unlike ``holds``, the time is not considered.
        """
        return not self._state.unsettled and self._known == (*self._inputs(), self._state.cluster.position)

    def holds(self) -> bool:
        """Return True if a cycle now would decide nothing."""
        return self.is_settled() and self._state.now_s < min(self.change_time_s(), self._since_s + self._age_max_s)

    def change_time_s(self) -> float:
        """Return the first time at which the remembered cycle would decide something, although no input has changed.

        The result is infinite if there is no such time.
        """
        if self._change_time_s is None:
            since_s = self._since_s
            self._change_time_s = min(
                (at_s for at_s in self._change_times(since_s) if at_s > since_s), default=math.inf
            )
        return self._change_time_s

    def has_changed(self) -> bool:
        """Return True if an input has changed since the begin of the round that has just ended."""
        return self._before is None or self._before != self._inputs()

    def clear(self) -> None:
        """Drop the memory, so that the next cycle is not skipped."""
        self._known = self._before = None

    def begin(self) -> None:
        """Record the inputs of the scheduler at the begin of a round."""
        self._known, self._change_time_s, self._paused = None, None, False
        self._before, self._since_s = self._inputs(), self._state.now_s

    def pause(self) -> None:
        """Record the inputs at the end of a cycle that left its round incomplete."""
        self._between = (*self._inputs(), self._state.cluster.position)
        self._paused = True

    def resume(self) -> None:
        """Compare the inputs at the begin of a cycle that continues a round. If they changed, the round is not remembered."""
        if self._between != (*self._inputs(), self._state.cluster.position):
            self._before = None

    def end(self) -> None:
        """Remember the inputs of the round that has been completed, if another cycle with them would decide nothing."""
        state = self._state
        # Each cycle computes a new start for a reservation whose start has passed.
        overdue = any(reservation.start_s <= state.now_s for reservation in state.reservations)
        volatile = state.placer.engine.scorer.random_ties or overdue
        if self._before is not None and not volatile:
            now, before = self._inputs(), self._before
            self._known = (*(now if self._changed_reservations_only(before, now) else before), state.cluster.position)

    def _changed_reservations_only(self, before: Inputs, now: Inputs) -> bool:
        """Return True if the round was one cycle, has made or renewed reservations, and changed no other input."""
        reserved = {r.gang for r in before[-1]}
        return not self._paused and before[:-1] == now[:-1] and reserved <= {r.gang for r in now[-1]}

    def _change_times(self, since_s: float) -> Iterator[float]:
        """Yield the times at which a rule may give another result although no input changes.

        Times that have passed already may be among them. Ends of running requests are estimated as at ``since_s``.
        """
        state, options = self._state, self._state.options
        if not state.registry.queued:
            return
        if options.half_life_s > 0:
            yield state.tree.past_use.next_period_s()
        yield from self._change_times_of_reservations(since_s)
        may_reserve = bool(state.reservations) and len(state.reservations) < options.reservations
        waiting: list[Request] = []
        if may_reserve or options.defragment_moves_max:
            waiting = [request for gang in state.registry.queued.values() for request in gang.waiting.values()]
        if may_reserve:
            for reservation in state.reservations:
                for request in waiting:
                    if (
                        request.run_time_s is not None
                    ):  # from then on it ends too late, and may need a reservation itself
                        yield reservation.start_s - request.run_time_s + ROUNDING_S
        yield from state.passed.values()
        for gang in state.registry.queued.values():
            if gang.evicted_at_s is not None:
                yield gang.evicted_at_s + BORROW_PAUSE_S
        if options.defragment_moves_max:
            for request in waiting:
                yield request.submitted_at_s + options.defragment_wait_s
        yield from self._change_times_of_running()

    def _change_times_of_reservations(self, since_s: float) -> Iterator[float]:
        """Yield the times at which a reservation starts or expires, or its start changes because a run time is exceeded."""
        state, options = self._state, self._state.options
        on_held: list[Running] = []
        managed = any(state.tree.form.managed)
        for reservation in state.reservations:
            yield reservation.start_s
            expires_at_s = reservation.expires_at_s(options.reservation_hold_s)
            if expires_at_s is not None:
                yield expires_at_s
            for node in reservation.requests_on:
                on_held += state.registry.on_node.get(node, {}).values()
            for gang in state.registry.running_in.get(reservation.gang[1], {}).values() if managed else ():
                on_held += gang.running.values()  # whether the reserved gang will be in quota depends on them
        if on_held:  # all of these times are in the future
            yield min([estimated_end_s(running, since_s, options.default_run_time_s) for running in on_held])

    def _change_times_of_running(self) -> Iterator[float]:
        """Yield the times from which running requests may be evicted or moved."""
        options = self._state.options
        rests_s = {options.min_run_time_s}
        if options.defragment_moves_max:
            rests_s.add(max(options.min_run_time_s, options.defragment_rest_s))
        rests_s.discard(0.0)
        if rests_s:
            for gangs in self._state.registry.running_in.values():
                for running in (running for gang in gangs.values() for running in gang.running.values()):
                    for rest_s in rests_s:
                        yield running.started_at_s + rest_s
