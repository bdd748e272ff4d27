"""Allocate: place a portion in what is free, all of it or nothing."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.sched.actions.backfill import HeldNodes, ends_at_s
from calabash.sched.actions.packing import is_exact, pack
from calabash.sched.actions.plan import Plan, shapes_of
from calabash.sched.cluster.shape import Shape
from calabash.sched.decisions import Request
from calabash.sched.state import SchedulerState


class Allocate:
    """The action for one cycle; what was found infeasible stays so until something is freed."""

    def __init__(self, state: SchedulerState, held: HeldNodes) -> None:
        self._state = state
        self._held = held
        self._infeasible: set[tuple[Shape, ...]] = set()

    def forget(self) -> None:
        """Places changed hands."""
        self._infeasible.clear()

    def plan(self, requests: Sequence[Request]) -> Plan | None:
        key = shapes_of(requests)
        if key in self._infeasible:
            return None
        if is_exact(requests) and self._held.refuse(requests[0].shape):
            return None
        ends_s = ends_at_s(requests, self._state.now_s)
        packing = pack(
            self._state.board,
            requests,
            lambda shape: self._held.choose(shape, ends_s),
            lambda shape: self._held.admitted(shape, ends_s),
        )
        if packing.placed is not None:
            return Plan(placed=packing.placed)
        if packing.cut:
            self._state.cut.add(key)
        # A held node may admit a shorter request of the same shape, so only what needs no admission is known.
        if not self._held.reservations:
            self._infeasible.add(key)
        return None
