"""Tenant that launches past the library, in virtual time: share of the other tenant in every window of five seconds."""

from __future__ import annotations

import pytest
from tests.unit.node.arbiter.arbiter_world import Tenant, World

from calabash.node.slots.clamped_counters import MS

FOUND_OUT_NS = 6_000 * MS  # by then the tenant was detected, and the other one has been repaid
WINDOW_NS = 5_000 * MS
PART_NS = 500 * MS


@pytest.mark.parametrize("neighbours_kernel_ns", [200_000, MS])
@pytest.mark.parametrize(
    ("percent", "kernel_ns", "depth_ns"), [(20, MS, 16 * MS), (50, MS, 16 * MS), (20, 10 * MS, 100 * MS)]
)
def test_in_any_five_seconds_its_neighbour_is_within_a_point_of_its_share(
    percent: int, kernel_ns: int, depth_ns: int, neighbours_kernel_ns: int
) -> None:
    past = Tenant(kernel_ns=kernel_ns, core_percent=percent, ungated=True, depth_ns=depth_ns)
    honest = Tenant(kernel_ns=neighbours_kernel_ns, core_percent=50)
    world = World({"past": past, "honest": honest})
    world.run(FOUND_OUT_NS)
    marks = [(honest.busy_ns, past.busy_ns)]
    for _ in range(2 * WINDOW_NS // PART_NS):
        world.run(PART_NS)
        marks.append((honest.busy_ns, past.busy_ns))
    parts = WINDOW_NS // PART_NS
    for before, after in zip(marks, marks[parts:], strict=False):
        assert abs((after[0] - before[0]) / WINDOW_NS - 0.5) <= 0.01
        assert (after[1] - before[1]) / WINDOW_NS <= percent / 100 + 0.03
