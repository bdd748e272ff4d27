"""Reserve: the first gang that finds no room is promised a start, so that large gangs do not starve.

Theory of operation. The earliest start by estimates (``estimate``) names the nodes that are held. A promise binds those who
come later in the order of the cycle; it is kept between cycles while its members wait and it can be kept.

Idle devices may be held without bound only when the start is known: everything that must end on the held nodes gave a run
time and has not exceeded it. Otherwise the start is a guess, and the gang may hold idle devices for at most
``reservation_hold_s``; then its promise lapses, others pass it for ``reservation_pause_s``, and after that it is promised a
start again. So nobody keeps devices idle for ever by waiting for all of them, and nobody who waits is forgotten: a gang
whose start is not known has a promise for at least hold / (hold + pause) of the time that it is the first to find no room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from calabash.sched.actions.backfill import HeldNodes
from calabash.sched.actions.estimate import earliest_start, end_is_known, estimated_end_s
from calabash.sched.actions.plan import shapes_of
from calabash.sched.cluster.shape import Shape
from calabash.sched.decisions import Request
from calabash.sched.queues.gang import Gang
from calabash.sched.queues.reservation import Reservation
from calabash.sched.state import SchedulerState


class Reserve:
    """The action for one cycle; it starts nothing."""

    def __init__(self, state: SchedulerState, held: HeldNodes) -> None:
        self._state = state
        self._held = held
        self._hopeless: set[tuple[Shape, ...]] = set()

    def forget(self) -> None:
        """Places changed hands."""
        self._hopeless.clear()

    def consider(self, gang: Gang, requests: Sequence[Request]) -> None:
        """Promise the gang a start if one more promise is allowed and there will be a start."""
        state = self._state
        held = self._held.reservations
        if len(held) >= state.options.reservations or not gang.missing or self.is_passed(gang):
            return
        if any(r.gang == gang.key for r in held):
            return
        key = shapes_of(requests)
        if key in self._hopeless:
            return
        earlier = next((r for r in state.reservations if r.gang == gang.key), None)
        reservation = self._kept(requests, earlier) or self._promised(gang, requests)
        if reservation is None:
            self._hopeless.add(key)
            return
        reservation = self._dated(reservation, earlier)
        lapses_at_s = reservation.lapses_at_s(state.options.reservation_hold_s)
        if lapses_at_s is not None and lapses_at_s <= state.now_s:
            state.passed[gang.key] = state.now_s + state.options.reservation_pause_s
        else:
            self._held.add(reservation)

    def is_passed(self, gang: Gang) -> bool:
        """Whether its promise lapsed and others may still pass."""
        return self._state.now_s < self._state.passed.get(gang.key, 0.0)

    def binding(self, reservation: Reservation) -> bool:
        """Whether a promise of an earlier cycle still holds devices now."""
        gang = self._state.registry.gangs.get(reservation.gang)
        lapses_at_s = reservation.lapses_at_s(self._state.options.reservation_hold_s)
        in_time = reservation.start_s > self._state.now_s and (lapses_at_s is None or lapses_at_s > self._state.now_s)
        return in_time and gang is not None and all(name in gang.waiting for name in reservation.ids)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _kept(self, requests: Sequence[Request], earlier: Reservation | None) -> Reservation | None:
        """The promise that these have from an earlier cycle, if it can still be kept; one to a part of them is none."""
        if earlier is None or earlier.start_s <= self._state.now_s:
            return None
        if {r.id for r in requests} != set(earlier.ids):
            return None
        with self._held.lifted():
            return earlier if self._held.can_keep(earlier) else None

    def _promised(self, gang: Gang, requests: Sequence[Request]) -> Reservation | None:
        state = self._state
        running = [r for g in state.registry.gangs.values() for r in g.running.values()]
        found = earliest_start(state, requests, running)
        if found is None:
            return None
        requests_on: dict[int, tuple[Request, ...]] = {}
        for request, placement in found[1]:
            requests_on[placement.node] = (*requests_on.get(placement.node, ()), request)
        return Reservation(gang=gang.key, start_s=found[0], requests_on=requests_on)

    def _dated(self, reservation: Reservation, earlier: Reservation | None) -> Reservation:
        """With the time since which the start is a guess."""
        if self._is_known(reservation):
            return replace(reservation, unknown_since_s=None)
        since_s = earlier.unknown_since_s if earlier is not None else None
        return replace(reservation, unknown_since_s=self._state.now_s if since_s is None else since_s)

    def _is_known(self, reservation: Reservation) -> bool:
        state = self._state
        return all(
            end_is_known(running, state.now_s)
            for node in reservation.requests_on
            for running in state.registry.on_node.get(node, {}).values()
            if estimated_end_s(running, state.now_s, state.options.default_run_time_s) <= reservation.start_s
        )
