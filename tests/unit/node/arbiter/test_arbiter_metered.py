"""Tests of slices that are only metered: the arbiter gives them no time windows."""

from __future__ import annotations

from pathlib import Path

from calabash.model.device import DeviceUuid
from calabash.model.request import AllocationId
from calabash.node.arbiter.device import DeviceShare
from calabash.node.arbiter.policy import is_active
from calabash.node.slots import content as slots_content
from calabash.node.slots import pages
from calabash.node.slots.files import FileSlots
from calabash.node.slots.layout import PagePolicy

NAME = AllocationId("a1")
NOW_NS = 10_000_000_000


def test_a_slice_that_is_only_measured_wants_no_turn_however_busy_it_is(tmp_path: Path) -> None:
    slots = FileSlots(tmp_path)
    device = slots_content.SlotDevice(uuid=DeviceUuid("MIG-1"), metered=True)
    slots.create(slots_content.SlotSpec(allocation=NAME, devices=(device,)))
    usage = pages.UsagePage.of_slot(slots.path(NAME))
    usage._page.device[0].demand_ns = NOW_NS - 1
    usage._page.device[0].waiting_count = 3
    demand = DeviceShare(NAME, pages.LimitsPage.of_slot(slots.path(NAME)), usage, 0).demand(NOW_NS)
    assert demand.policy is PagePolicy.NONE
    assert not is_active(demand, NOW_NS)
