"""Skip a cycle that would decide what the last cycle decided: nothing.

Theory of operation. A cycle is a function of its inputs and of the time. The inputs are the arrays of the cluster, what waits
and runs, the queues, the promises, and what callers set (moves that are left, MIG profiles to come). They are compared by
counters where there are counters (the change log of the arrays, the registry, ``SchedulerState.version``), else by value. Use
and shares of queues and what policies learn change with the registry only. A cycle whose inputs are those that the last cycle
began with decides the same again. This is nothing: a cycle that starts something changes the registry, one that drops a promise
changes an input too, and reasons to wait are reported once. Neither does a cycle decide anything after one that has changed no
input but for promises that it has made: each is kept by the next cycle, or made anew, alike, from the same inputs.

Over the same inputs a cycle decides otherwise only because of the time. ``_moments`` yields the times at which a rule may
change its answer; the memory ends at the first one, and the scheduler names it as its wake-up. Each is computed as the rule
computes it, so that the rule has its new answer at that very time. The memory is not kept at all where answers change all the
time: where shares depend on past use, and for a policy that draws lots. As a bound on what a rule that is missing here could
cost, the memory ends after ``AGE_MAX_S`` in any case.
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
ROUNDING_S = 0.001  # added to the time of a rule that changes its answer after that time, not at it
Inputs = tuple[Any, ...]
"""The promises are the last."""


class CycleMemory:
    """Inputs of the last cycle, and the time until which another one over the same inputs decides nothing.

    Args:
        age_max_s: longest time that the memory is kept.
    """

    def __init__(self, state: SchedulerState, *, age_max_s: float = AGE_MAX_S) -> None:
        self._state = state
        self._age_max_s = age_max_s
        self._known: Inputs | None = None
        self._before: Inputs | None = None  # those that the round which is not complete began with
        self._between: Inputs = ()
        self._paused = False
        self._since_s = 0.0
        self._moment_s: float | None = (
            None  # computed when it is asked for first: few cycles are followed by an equal one
        )

    def _inputs(self) -> Inputs:
        """Return what a cycle depends on, but for the arrays: trial placements move the change log."""
        state = self._state
        return (
            state.version,
            state.registry.version,
            state.moves_left,
            tuple(state.cluster.mig_coming),
            dict(state.passed),
            tuple(state.reservations),
        )

    def is_settled(self) -> bool:
        """Return True if nothing has changed since a cycle that decided nothing, the time aside."""
        return not self._state.unsettled and self._known == (*self._inputs(), self._state.cluster.position)

    def holds(self) -> bool:
        """Return True if a cycle now would decide nothing."""
        return self.is_settled() and self._state.now_s < min(self.moment_s(), self._since_s + self._age_max_s)

    def moment_s(self) -> float:
        """Return the first time at which time alone may change a decision of the remembered cycle; infinite if none."""
        if self._moment_s is None:
            since_s = self._since_s
            self._moment_s = min((at_s for at_s in self._moments(since_s) if at_s > since_s), default=math.inf)
        return self._moment_s

    def has_changed(self) -> bool:
        """Return True if the round that has just ended changed something, or something changed during it."""
        return self._before is None or self._before != self._inputs()

    def forget(self) -> None:
        """Drop the memory: the next cycle looks at everything."""
        self._known = self._before = None

    def begin(self) -> None:
        """A round begins."""
        self._known, self._moment_s, self._paused = None, None, False
        self._before, self._since_s = self._inputs(), self._state.now_s

    def pause(self) -> None:
        """A cycle has ended before the round was complete."""
        self._between = (*self._inputs(), self._state.cluster.position)
        self._paused = True

    def resume(self) -> None:
        """The round goes on. What has changed meanwhile is an input that it did not begin with."""
        if self._between != (*self._inputs(), self._state.cluster.position):
            self._before = None

    def end(self) -> None:
        """The round is complete: keep it."""
        state = self._state
        # A promise that starts by now is dated anew by each cycle.
        overdue = any(reservation.start_s <= state.now_s for reservation in state.reservations)
        volatile = state.options.half_life_s > 0 or state.room.engine.scorer.random_ties or overdue
        if self._before is not None and not volatile:
            now, before = self._inputs(), self._before
            self._known = (*(now if self._made_promises_only(before, now) else before), state.cluster.position)

    def _made_promises_only(self, before: Inputs, now: Inputs) -> bool:
        """Return True if the round was one cycle, and has made or renewed promises and changed no other input."""
        promised = {r.gang for r in before[-1]}
        return not self._paused and before[:-1] == now[:-1] and promised <= {r.gang for r in now[-1]}

    def _moments(self, since_s: float) -> Iterator[float]:
        """Yield the times at which time alone may change a decision, past ones too."""
        state, options = self._state, self._state.options
        if not state.registry.queued:
            return
        yield from self._moments_of_promises(since_s)
        may_promise = bool(state.reservations) and len(state.reservations) < options.reservations
        waiting: list[Request] = []
        if may_promise or options.defragment_moves_max:
            waiting = [request for gang in state.registry.queued.values() for request in gang.waiting.values()]
        if may_promise:
            for reservation in state.reservations:
                for request in waiting:
                    if request.run_time_s is not None:  # from then on it ends too late, and may need a promise itself
                        yield reservation.start_s - request.run_time_s + ROUNDING_S
        yield from state.passed.values()
        for gang in state.registry.queued.values():
            if gang.evicted_at_s is not None:
                yield gang.evicted_at_s + BORROW_PAUSE_S
        if options.defragment_moves_max:
            for request in waiting:
                yield request.submitted_at_s + options.defragment_wait_s
        yield from self._moments_of_rest()

    def _moments_of_promises(self, since_s: float) -> Iterator[float]:
        """Yield the times at which a promise starts, lapses, or may be dated anew, because an estimate was exceeded."""
        state, options = self._state, self._state.options
        on_held: list[Running] = []
        managed = any(state.tree.form.managed)
        for reservation in state.reservations:
            yield reservation.start_s
            lapses_at_s = reservation.lapses_at_s(options.reservation_hold_s)
            if lapses_at_s is not None:
                yield lapses_at_s
            for node in reservation.requests_on:
                on_held += state.registry.on_node.get(node, {}).values()
            for gang in state.registry.running_in.get(reservation.gang[1], {}).values() if managed else ():
                on_held += gang.running.values()  # what is guaranteed to the queue at the start depends on them
        if on_held:  # none of these times is past
            yield min([estimated_end_s(running, since_s, options.default_run_time_s) for running in on_held])

    def _moments_of_rest(self) -> Iterator[float]:
        """Yield the times from which what runs may be evicted or moved."""
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
