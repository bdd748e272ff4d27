"""Samples of a driver that attributes whole periods to one process are no evidence against any allocation."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from calabash.model.device import DeviceUuid, ProcessUtilization
from calabash.model.request import AllocationId, ComputePolicy
from calabash.node.audit.auditor import WINDOW_NS, Auditor
from calabash.node.audit.sample_evidence import EVIDENCE, score_after
from calabash.node.processes.reaper import OpenSlot
from calabash.node.slots.content import SlotDevice, SlotSpec
from calabash.node.slots.files import create_slot
from calabash.node.slots.names import LEASE_FILE
from calabash.node.slots.overhead import Residual
from calabash.node.slots.pages import LimitsPage, UsagePage

UUID = DeviceUuid("GPU-1")
A, B = 11, 12
OWNERS = {A: AllocationId("a"), B: AllocationId("b")}
SHARES = {A: 30, B: 70}
Percents = dict[int, int]


class Samples:
    """Inventory and driver of one device, whose samples are a function of the number of the window."""

    def __init__(self, percents: Callable[[int], Percents], *, exact: bool) -> None:
        self.samples_are_exact = exact
        self._percents, self._number, self._now_us = percents, 0, int(time.time() * 1e6)

    def is_unused(self, _uuid: DeviceUuid) -> bool:
        return False

    def driver_of(self, _uuid: DeviceUuid) -> Samples:
        return self

    def utilization(self, _uuid: DeviceUuid, _after_us: int) -> tuple[ProcessUtilization, ...]:
        self._number += 1
        self._now_us += WINDOW_NS // 1000
        percents = self._percents(self._number)
        return tuple(
            ProcessUtilization(pid=pid, percent=percent, at_us=self._now_us) for pid, percent in percents.items()
        )


class Members:
    def allocation_of(self, pid: int) -> AllocationId | None:
        return OWNERS.get(pid)


def _slot(directory: Path, name: AllocationId) -> OpenSlot:
    path = directory / name
    device = SlotDevice(
        uuid=UUID,
        memory_limit_bytes=1 << 30,
        spill_bytes=0,
        core_percent=30,
        policy=ComputePolicy.FIXED,
        priority=0,
    )
    create_slot(path, SlotSpec(allocation=name, devices=(device,)))
    return OpenSlot(
        usage=UsagePage.of_slot(path), limits=LimitsPage.of_slot(path), lease=path / LEASE_FILE, residuals=[Residual()]
    )


def _accused(
    directory: Path,
    percents: Callable[[int], Percents],
    told: Callable[[int], Percents],
    *,
    windows: int = 40,
    exact: bool = False,
) -> set[AllocationId]:
    """Return the allocations that are found to under-report.

    Args:
        percents: the driver's samples by process, for each window.
        told: the GPU time that usage pages report, by process, in percent of each window.
        windows: their number.
        exact: the driver's samples are exact also while several processes share the device.
    """
    directory.mkdir(exist_ok=True)
    accused: set[AllocationId] = set()
    auditor = Auditor(
        cast("Any", Samples(percents, exact=exact)),
        cast("Any", Members()),
        freezes=False,
        report=lambda name, _uuid, _ns: accused.add(name),
    )
    slots = {pid: _slot(directory, name) for pid, name in OWNERS.items()}
    opened = tuple(slots.values())
    for number in range(1, windows + 1):
        for pid, percent in told(number).items():
            slots[pid].usage._page.device[0].charged_ns += WINDOW_NS // 100 * percent
        auditor.tick(opened, number * WINDOW_NS)
    return accused


def _whole_periods(number: int) -> Percents:
    """Return the samples of a period that is attributed to one process, each as often as its share says."""
    return {A: 99} if random.Random(number).random() * 100 < SHARES[A] else {B: 99}


def test_honest_programs_are_not_accused_by_samples_of_whole_periods(tmp_path: Path) -> None:
    assert _accused(tmp_path, _whole_periods, lambda _: SHARES, windows=1200) == set()


def test_program_that_reports_nothing_does_not_turn_such_samples_against_the_other(tmp_path: Path) -> None:
    assert _accused(tmp_path, _whole_periods, lambda _: {A: SHARES[A]}, windows=1200) == set()


def test_only_the_program_that_reports_too_little_is_accused_by_exact_samples(tmp_path: Path) -> None:
    assert _accused(tmp_path, lambda _: SHARES, lambda _: {A: 10, B: SHARES[B]}) == {"a"}


def test_first_work_that_the_driver_has_not_seen_yet_suspends_the_evidence_for_a_second(tmp_path: Path) -> None:
    def late(number: int) -> Percents:
        return SHARES if number > 2 else {B: SHARES[B]}

    assert _accused(tmp_path, late, lambda _: {A: 0, B: SHARES[B]}) == {"a"}


def test_reports_of_work_that_was_not_done_suspend_no_evidence_of_an_exact_driver(tmp_path: Path) -> None:
    seen, told = {A: 0, B: 70}, {A: 95, B: 0}
    assert _accused(tmp_path / "exact", lambda _: seen, lambda _: told, exact=True) == {"b"}
    assert _accused(tmp_path / "other", lambda _: seen, lambda _: told) == set()


def test_one_program_alone_is_compared_always(tmp_path: Path) -> None:
    assert _accused(tmp_path, lambda _: {A: 99}, lambda _: {A: 30}) == {"a"}


def test_score_falls_faster_than_it_rises() -> None:
    complete, missing, alone = ((0.3, 1), (0.7, 1)), ((0.3, 0), (0.7, 1)), ((0.3, 0),)
    assert score_after(EVIDENCE, complete) == EVIDENCE
    assert score_after(EVIDENCE, alone) == EVIDENCE
    fallen = score_after(EVIDENCE, missing)
    assert fallen < EVIDENCE
    assert fallen < score_after(fallen, complete) < EVIDENCE
    assert score_after(EVIDENCE, ((0.05, 0), (0.7, 1))) == EVIDENCE
    assert score_after(EVIDENCE, ((0.9, 0), (0.5, 1))) == EVIDENCE
