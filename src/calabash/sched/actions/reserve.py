"""Reserve action: hold nodes for the first gang that does not fit, so that large gangs do not starve.

Theory of operation. The nodes of the earliest start by estimates (``estimate``) are held. A reservation binds the requests that
are attempted later in the cycle. It is kept between cycles while its members wait and will fit on its nodes at the start.

Idle devices are held without a time limit only if the start is known: all requests that must end first on the held nodes gave
a run time and have not exceeded it. Otherwise the start is a guess, and the gang may hold idle devices for at most
``reservation_hold_s``. Then the reservation expires, the gang gets no other for ``reservation_pause_s``, and may get one after
that. So no gang keeps devices idle for ever, and no gang starves: a gang of unknown start has a reservation for at least
hold / (hold + pause) of the time for which it is the first gang that does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from calabash.sched.actions.backfill import HeldNodes
from calabash.sched.actions.estimate import earliest_start, end_is_known, estimated_end_s
from calabash.sched.actions.plan import PackingKey, shapes_of
from calabash.sched.decisions import Request
from calabash.sched.queues.gang import Gang
from calabash.sched.queues.reservation import Reservation
from calabash.sched.state import SchedulerState


class Reserve:
    """The reserve action of one cycle. It starts nothing."""

    def __init__(self, state: SchedulerState, held: HeldNodes) -> None:
        self._state = state
        self._held = held
        self._hopeless: set[PackingKey] = set()

    def clear_cache(self) -> None:
        """Forget the shapes for which no start could be estimated, because placements have changed."""
        self._hopeless.clear()

    def reserve_for(self, gang: Gang, requests: Sequence[Request]) -> None:
        """Reserve nodes for the core of a gang, or for a single request, until its estimated start.

        Does nothing in these cases: there are ``Options.reservations`` reservations already; the core of the gang runs;
        the gang has a reservation, or is in the pause after an expired one; no start can be estimated.
        """
        state = self._state
        held = self._held.reservations
        if len(held) >= state.options.reservations or not gang.missing or self.is_paused(gang):
            return
        if any(r.gang == gang.key for r in held):
            return
        key = shapes_of(requests)
        if key in self._hopeless:
            return
        earlier = next((r for r in state.reservations if r.gang == gang.key), None)
        reservation = self._renewed(requests, earlier) or self._new(gang, requests)
        if reservation is None:
            self._hopeless.add(key)
            return
        reservation = self._with_unknown_since(reservation, earlier)
        expires_at_s = reservation.expires_at_s(state.options.reservation_hold_s)
        if expires_at_s is not None and expires_at_s <= state.now_s:
            state.passed[gang.key] = state.now_s + state.options.reservation_pause_s
        else:
            self._held.add(reservation)

    def is_paused(self, gang: Gang) -> bool:
        """Return True if the gang gets no reservation now because its last one has expired."""
        return self._state.now_s < self._state.passed.get(gang.key, 0.0)

    def is_binding(self, reservation: Reservation) -> bool:
        """Return True if a reservation of an earlier cycle is valid: it has neither started nor expired, and its gang waits."""
        gang = self._state.registry.gangs.get(reservation.gang)
        expires_at_s = reservation.expires_at_s(self._state.options.reservation_hold_s)
        in_time = reservation.start_s > self._state.now_s and (expires_at_s is None or expires_at_s > self._state.now_s)
        return in_time and gang is not None and all(name in gang.waiting for name in reservation.request_ids)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _renewed(self, requests: Sequence[Request], earlier: Reservation | None) -> Reservation | None:
        """Return the reservation of an earlier cycle if it is for exactly these requests and still feasible."""
        if earlier is None or earlier.start_s <= self._state.now_s:
            return None
        if {r.id for r in requests} != set(earlier.request_ids):
            return None
        with self._held.released():
            return earlier if self._held.is_feasible(earlier) else None

    def _new(self, gang: Gang, requests: Sequence[Request]) -> Reservation | None:
        """Return a reservation for the earliest estimated start; None if there is none."""
        state = self._state
        running = [r for g in state.registry.gangs.values() for r in g.running.values()]
        found = earliest_start(state, requests, running)
        if found is None:
            return None
        requests_on: dict[int, tuple[Request, ...]] = {}
        for request, placement in found[1]:
            requests_on[placement.node] = (*requests_on.get(placement.node, ()), request)
        return Reservation(gang=gang.key, start_s=found[0], requests_on=requests_on)

    def _with_unknown_since(self, reservation: Reservation, earlier: Reservation | None) -> Reservation:
        """Return the reservation with ``unknown_since_s`` set: the time since which its start is a guess.

        This is None if the start is known. It is the time in ``earlier``, the gang's reservation of the last cycle, if
        the start was a guess then; otherwise it is the current time.
        """
        if self._is_start_known(reservation):
            return replace(reservation, unknown_since_s=None)
        since_s = earlier.unknown_since_s if earlier is not None else None
        return replace(reservation, unknown_since_s=self._state.now_s if since_s is None else since_s)

    def _is_start_known(self, reservation: Reservation) -> bool:
        state = self._state
        return all(
            end_is_known(running, state.now_s)
            for node in reservation.requests_on
            for running in state.registry.on_node.get(node, {}).values()
            if estimated_end_s(running, state.now_s, state.options.default_run_time_s) <= reservation.start_s
        )
