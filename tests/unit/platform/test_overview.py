"""Sums of the overview, which the front page of the console shows."""

from __future__ import annotations

from tests.unit.gateway.replies import allocation, device, part

from calabash.api.replies import AllocationView
from calabash.platform.overview import overview


def held(name: str, *uses: float) -> AllocationView:
    """Return an allocation with a slice of 10,000 MiB and 10 % on each of the first devices.

    Args:
        uses: percent of the device's compute that each slice uses; one for each slice.
    """
    slices = [part(i, memory_mib=10000, core_percent=10, core_used_percent=use) for i, use in enumerate(uses)]
    return allocation(name, tenant="vision", slices=slices)


def test_given_out_and_used_are_added_up_apart() -> None:
    cards = [device(0, core_allocated_percent=50, utilization_percent=10), device(1, memory_allocated_mib=10000)]
    seen = overview(cards, [], pending=3, reasons=["no_room", "no_room"], at_s=1.0)
    assert (seen.devices, seen.given, seen.busy) == (2, 0.75, 0.1)
    assert [(r.name, r.count) for r in seen.pending_by_reason] == [("no_room", 2)]
    assert (seen.pending, seen.unexplained) == (3, 1)
    assert [(c.index, c.given_percent, c.busy_percent) for c in seen.cells] == [(0, 50, 10), (1, 25, 0)]


def test_slices_that_compute_nothing_are_counted_with_what_they_keep_from_others() -> None:
    seen = overview([device(0), device(1)], [held("a", 0.0, 30.0), held("b", 0.0)], pending=0, reasons=[], at_s=1.0)
    assert (seen.slices, seen.idle_held, seen.idle_held_devices) == (3, 2, 0.5)
    assert [(t.name, t.count) for t in seen.tenants] == [("vision", 2)]


def test_a_pool_without_devices_is_nothing_at_a_glance() -> None:
    seen = overview([], [], pending=0, reasons=[], at_s=1.0)
    assert (seen.devices, seen.given, seen.memory_mib, seen.cells, seen.health) == (0, 0.0, 0, [], [])
