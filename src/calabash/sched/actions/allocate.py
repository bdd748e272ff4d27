"""Allocate action: place all requests of a start group, which start together, on free devices, or none of them."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.sched.actions.backfill import HeldNodes, ends_at_s
from calabash.sched.actions.packing import is_exact, pack
from calabash.sched.actions.plan import PackingKey, Plan, has_topology, shapes_of
from calabash.sched.decisions import Request
from calabash.sched.state import SchedulerState


class Allocate:
    """The allocate action of one cycle.

    Shapes that do not fit are remembered until ``clear_cache``, so that they are not tried again in vain.
    """

    def __init__(self, state: SchedulerState, held: HeldNodes) -> None:
        self._state = state
        self._held = held
        self._infeasible: set[PackingKey] = set()

    def clear_cache(self) -> None:
        """Forget the shapes that did not fit, because placements have changed and the shapes may fit now."""
        self._infeasible.clear()

    def plan(self, requests: Sequence[Request]) -> Plan | None:
        """Return a plan that places all requests, applied in the transaction; None if they do not fit."""
        key = shapes_of(requests)
        if key in self._infeasible:
            return None
        if is_exact(requests) and self._held.fits_nowhere(requests[0].shape):
            return None
        ends_s = ends_at_s(requests, self._state.now_s)
        packing = pack(
            self._state.transaction,
            requests,
            lambda shape: self._held.choose(shape, ends_s),
            lambda shape: self._held.backfill_placements(shape, ends_s),
        )
        if packing.placed is None and self._may_use_held_nodes(requests, ends_s):
            with self._held.released():
                packing = pack(self._state.transaction, requests)
        if packing.placed is not None:
            return Plan(placed=packing.placed)
        if packing.cut:
            self._state.cut.add(key)
        # A held node may admit a shorter request of the same shape, so a refusal is remembered only without held nodes.
        if not self._held.reservations:
            self._infeasible.add(key)
        return None

    def _may_use_held_nodes(self, requests: Sequence[Request], ends_at_s: float | None) -> bool:
        """Return True if requests with a topology end before all reservations start, so that they delay none."""
        first_s = self._held.first_start_s
        return has_topology(requests) and first_s is not None and ends_at_s is not None and ends_at_s <= first_s
