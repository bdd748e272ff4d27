"""Samples of a driver that counts one period for several processes are no evidence against any of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import pytest

from calabash.model.device import DeviceUuid, ProcessUtilization
from calabash.model.request import AllocationId, ComputePolicy
from calabash.node.audit.auditor import WINDOW_NS, Auditor
from calabash.node.processes.reaper import OpenSlot
from calabash.node.slots.content import SlotDevice, SlotSpec
from calabash.node.slots.files import create_slot
from calabash.node.slots.names import LEASE_FILE
from calabash.node.slots.overhead import Residual
from calabash.node.slots.pages import LimitsPage, UsagePage

UUID = DeviceUuid("GPU-1")
OWNERS = {11: AllocationId("a"), 12: AllocationId("b"), 13: AllocationId("c")}
ROUNDS = 12


class Samples:
    """Inventory and driver of one device, whose processes have constant utilisation."""

    def __init__(self, percents: dict[int, int], later: dict[int, int] | None) -> None:
        self.percents, self.later, self.now_us = percents, later, int(time.time() * 1e6)
        self.answers = 0

    def is_unused(self, _uuid: DeviceUuid) -> bool:
        return False

    def driver_of(self, _uuid: DeviceUuid) -> Samples:
        return self

    def utilization(self, _uuid: DeviceUuid, _after_us: int) -> tuple[ProcessUtilization, ...]:
        self.now_us += WINDOW_NS // 1000
        self.answers += 1
        if self.later is not None and self.answers > ROUNDS // 4:
            self.percents = self.later
        return tuple(
            ProcessUtilization(pid=pid, percent=percent, at_us=self.now_us) for pid, percent in self.percents.items()
        )


class Members:
    def allocation_of(self, pid: int) -> AllocationId | None:
        return OWNERS.get(pid)

    def freeze(self, _allocation: AllocationId, _frozen: bool) -> None:
        raise AssertionError("nobody is stopped")


def _slot(directory: Path, name: AllocationId, policy: ComputePolicy | None) -> OpenSlot:
    path = directory / name
    device = SlotDevice(
        uuid=UUID, memory_limit_bytes=1 << 30, spill_bytes=0, core_percent=30, policy=policy, priority=0
    )
    create_slot(path, SlotSpec(allocation=name, devices=(device,)))
    return OpenSlot(
        usage=UsagePage.of_slot(path), limits=LimitsPage.of_slot(path), lease=path / LEASE_FILE, residuals=[Residual()]
    )


def _audited(
    directory: Path,
    percents: dict[int, int],
    policy: ComputePolicy | None = ComputePolicy.FIXED,
    later: dict[int, int] | None = None,
) -> tuple[list[AllocationId], list[int]]:
    """Return the allocations that under-report, and the unreported time of each in ns, after ROUNDS windows."""
    reported: list[AllocationId] = []
    auditor = Auditor(
        cast("Any", Samples(percents, later)),
        cast("Any", Members()),
        freezes=False,
        report=lambda name, _uuid, _ns: reported.append(name),
    )
    slots = tuple(_slot(directory, OWNERS[pid], policy) for pid in percents)
    for number in range(ROUNDS):
        auditor.tick(slots, (number + 1) * WINDOW_NS)
    return reported, [slot.limits.device(0).unreported_ns for slot in slots]


def test_unreported_time_is_charged_where_samples_add_up(tmp_path: Path) -> None:
    reported, unreported = _audited(tmp_path, {11: 50, 12: 30, 13: 20})
    assert sorted(reported) == ["a", "b", "c"]
    assert all(unreported)


def test_nobody_is_accused_where_samples_add_up_to_more_than_the_time(tmp_path: Path) -> None:
    reported, unreported = _audited(tmp_path, {11: 88, 12: 66, 13: 94})  # as seen on an H200 with driver 580
    assert reported == []
    assert unreported == [0, 0, 0]


def test_a_driver_whose_samples_once_added_up_to_too_much_is_not_used_as_evidence_later(tmp_path: Path) -> None:
    reported, unreported = _audited(tmp_path, {11: 99, 12: 99}, later={11: 99, 12: 0})
    assert reported == []
    assert unreported == [0, 0]


def test_whole_percents_of_many_processes_may_add_up_to_a_little_more(tmp_path: Path) -> None:
    reported, _ = _audited(tmp_path, {11: 52, 12: 32, 13: 21})
    assert sorted(reported) == ["a", "b", "c"]


def test_allocations_without_a_library_are_charged_their_part_of_the_time(tmp_path: Path) -> None:
    _, charged = _audited(tmp_path, {11: 100, 12: 100}, policy=None)
    assert charged[0] == charged[1]
    assert sum(charged) == pytest.approx((ROUNDS - 1) * WINDOW_NS, rel=0.2)
