"""Metering: intervals add up to held and used time through checkpoints, lost writes and restarts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from calabash.model.allocation import AllocationRecord, AllocationState, UsageRecord, UsageSoFar
from calabash.model.device import DeviceReading, DeviceUuid, NodeName, PartTime
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement, Slice
from calabash.model.units import MIB
from calabash.node.metering.interval import Measured
from calabash.node.metering.meters import Meters
from calabash.node.metering.usage_tracker import CHECKPOINT_NS, UsageTracker
from calabash.node.slots import content as slots_content
from calabash.node.slots import open_pages, pages
from calabash.node.slots.files import FileSlots
from calabash.node.slots.layout import PagePolicy
from calabash_testing.clock import VirtualClock

CARD = DeviceUuid("GPU-1")
NAME = AllocationId("a1")


class Written:
    """A store that keeps usage records only, one for each number, like the real one."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str, int], UsageRecord] = {}

    def add_usage(self, records: Sequence[UsageRecord]) -> None:
        for record in records:
            self.records.setdefault((record.allocation, record.device, record.sequence), record)

    def so_far(self) -> UsageSoFar | None:
        if not self.records:
            return None
        return UsageSoFar(
            until_s=max(r.to_s for r in self.all),
            next_sequence=len(self.all),
            used_gpu_s={0: sum(r.used_gpu_s for r in self.all)},
        )

    @property
    def all(self) -> list[UsageRecord]:
        return list(self.records.values())


def _record(clock: VirtualClock, *, mode: str = "vgpu", core_percent: int = 50) -> AllocationRecord:
    part = Slice(device=CARD, memory_mib=1024, core_percent=core_percent)
    return AllocationRecord(
        id=NAME,
        state=AllocationState.RUNNING,
        request=GpuRequest(memory_mib=1024, core_percent=core_percent, tenant="vision"),
        placement=Placement(node=NodeName("n"), mode=ModeName(mode), slices=(part,)),
        granted_at=clock.now_s(),
    )


def _slot(directory: Path, *, limit_mib: int = 1024) -> FileSlots:
    slots = FileSlots(directory)
    device = slots_content.SlotDevice(uuid=CARD, memory_limit_bytes=limit_mib * MIB)
    slots.create(slots_content.SlotSpec(allocation=NAME, devices=(device,)))
    return slots


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["run", "checkpoint", "restart"]), st.floats(0.1, 200), st.floats(0, 1)), max_size=12
    )
)
def test_intervals_add_up_through_checkpoints_and_restarts(steps: list[tuple[str, float, float]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        clock = VirtualClock()
        slots = _slot(Path(directory))
        page = pages.UsagePage.of_slot(slots.path(NAME))
        record = _record(clock)
        written = Written()
        usage_tracker = UsageTracker(slots, clock)
        elapsed_s = used_s = 0.0
        for what, seconds, share in steps:
            clock.advance(seconds)
            elapsed_s += seconds
            used_s += seconds * share
            page._page.device[0].charged_ns = int(used_s * 1e9)
            usage_tracker.tick([record])
            if what == "checkpoint":
                usage_tracker.checkpoint([record], cast("Any", written))
            elif what == "restart":
                usage_tracker = UsageTracker(slots, clock)
                usage_tracker.restore(record, written.so_far())
                usage_tracker.meters.note_living()
        written.add_usage(list(usage_tracker.close(record)))
        assert sum(r.to_s - r.from_s for r in written.all) == pytest.approx(elapsed_s, abs=1e-3)
        assert sum(r.allocated_gpu_s for r in written.all) == pytest.approx(elapsed_s / 2, abs=1e-3)
        assert sum(r.used_gpu_s for r in written.all) == pytest.approx(used_s, abs=1e-3)
        assert sum(r.memory_mib_s for r in written.all) == pytest.approx(elapsed_s * 1024, abs=1.0)


def test_used_time_is_bounded_by_elapsed_time(tmp_path: Path) -> None:
    clock = VirtualClock()
    slots = _slot(tmp_path)
    record = _record(clock)
    usage_tracker = UsageTracker(slots, clock)
    usage_tracker.tick([record])
    clock.advance(10)
    pages.UsagePage.of_slot(slots.path(NAME))._page.device[0].charged_ns = 1 << 62
    assert [r.used_gpu_s for r in usage_tracker.close(record)] == [pytest.approx(10)]


def test_rate_is_the_time_charged_in_the_last_second(tmp_path: Path) -> None:
    clock = VirtualClock()
    slots = _slot(tmp_path)
    page = pages.UsagePage.of_slot(slots.path(NAME))
    record = _record(clock)
    usage_tracker = UsageTracker(slots, clock)
    usage_tracker.tick([record])
    for _ in range(10):
        clock.advance(0.1)
        page._page.device[0].charged_ns += 30_000_000
        usage_tracker.tick([record])
    assert usage_tracker.use(record)[0].core_used_percent == pytest.approx(30, abs=0.5)


def test_whole_card_is_metered_by_its_utilisation(tmp_path: Path) -> None:
    clock = VirtualClock()
    slots = _slot(tmp_path, limit_mib=0)
    record = _record(clock, mode="exclusive", core_percent=100)
    reading = DeviceReading(uuid=CARD, memory_used_mib=5000, utilization_percent=40, temperature_c=50, power_w=100.0)

    class Inventory:
        def reading(self, uuid: DeviceUuid) -> DeviceReading:
            return reading

    usage_tracker = UsageTracker(slots, clock)
    usage_tracker.tick([record])
    for _ in range(10):
        clock.advance(1)
        usage_tracker.sample([record], cast("Any", Inventory()))
        usage_tracker.tick([record])
    assert usage_tracker.use(record)[0].memory_used_mib == 5000
    assert usage_tracker.use(record)[0].core_used_percent == pytest.approx(40, abs=1)
    assert [r.used_gpu_s for r in usage_tracker.close(record)] == [pytest.approx(4, abs=0.01)]


def test_checkpoint_is_written_once_a_minute(tmp_path: Path) -> None:
    clock = VirtualClock()
    slots = _slot(tmp_path)
    record = _record(clock)
    usage_tracker = UsageTracker(slots, clock)
    written = Written()
    for _ in range(int(3 * CHECKPOINT_NS / 1e9)):
        clock.advance(1)
        usage_tracker.checkpoint([record], cast("Any", written))
    assert len(written.all) == 3


def test_tenant_that_overwrites_its_page_is_charged_what_the_driver_saw(tmp_path: Path) -> None:
    clock = VirtualClock()
    slots = _slot(tmp_path)
    page, limits = pages.UsagePage.of_slot(slots.path(NAME)), pages.LimitsPage.of_slot(slots.path(NAME))
    record = _record(clock)
    usage_tracker = UsageTracker(slots, clock)
    usage_tracker.tick([record])
    page._page.device[0].charged_ns = 4_000_000_000
    clock.advance(10)
    usage_tracker.tick([record])
    page._page.device[0].charged_ns = 0
    limits.add_seen(0, 7_000_000_000, unreported_ns=3_000_000_000)
    clock.advance(10)
    usage_tracker.tick([record])
    assert usage_tracker.use(record)[0].core_used_percent == pytest.approx(30.0)
    assert [r.used_gpu_s for r in usage_tracker.close(record)] == [pytest.approx(7.0)]


@pytest.mark.parametrize(("limit_mib", "capped"), [(1024, 1), (0, 0)])
def test_slot_without_memory_limit_is_open_and_not_capped(tmp_path: Path, limit_mib: int, capped: int) -> None:
    clock = VirtualClock()
    usage_tracker = UsageTracker(_slot(tmp_path, limit_mib=limit_mib), clock)
    usage_tracker.tick([_record(clock)])
    assert (len(usage_tracker.open_slots()), len(usage_tracker.capped_slots())) == (1, capped)


def test_time_on_a_mig_instance_counts_as_its_fraction_of_the_device(tmp_path: Path) -> None:
    clock = VirtualClock()
    slots = FileSlots(tmp_path)
    device = slots_content.SlotDevice(uuid=DeviceUuid("MIG-1"), metered=True)
    slots.create(slots_content.SlotSpec(allocation=NAME, devices=(device,)))
    limits = pages.LimitsPage.of_slot(slots.path(NAME))
    assert limits.device(0).policy == PagePolicy.METERED
    page = pages.UsagePage.of_slot(slots.path(NAME))
    record = _record(clock, mode="mig", core_percent=28)
    usage_tracker = UsageTracker(slots, clock)
    usage_tracker.tick([record])
    clock.advance(10)
    page._page.device[0].charged_ns = 5_000_000_000
    usage_tracker.tick([record])
    (use,) = usage_tracker.use(record)
    assert use.core_used_percent == pytest.approx(14)
    (interval,) = usage_tracker.close(record)
    assert interval.allocated_gpu_s == pytest.approx(2.8)
    assert interval.used_gpu_s == pytest.approx(1.4)


def test_used_time_of_a_mig_instance_is_bounded_by_its_fraction(tmp_path: Path) -> None:
    clock = VirtualClock()
    slots = _slot(tmp_path)
    page = pages.UsagePage.of_slot(slots.path(NAME))
    record = _record(clock, mode="mig", core_percent=14)
    usage_tracker = UsageTracker(slots, clock)
    usage_tracker.tick([record])
    clock.advance(10)
    page._page.device[0].charged_ns = 900_000_000_000
    (interval,) = usage_tracker.close(record)
    assert interval.used_gpu_s == pytest.approx(1.4)


class Told:
    """A driver that reports how long a MIG instance worked."""

    def __init__(self) -> None:
        self.busy_ns: int | None = 0

    def reading(self, uuid: DeviceUuid) -> DeviceReading:
        parts = () if self.busy_ns is None else (PartTime(uuid=DeviceUuid("MIG-1"), busy_ns=self.busy_ns),)
        return DeviceReading(
            uuid=uuid, memory_used_mib=0, utilization_percent=0, temperature_c=0, power_w=0.0, parts=parts
        )


def test_time_of_a_mig_instance_that_only_the_driver_saw_is_added_once(tmp_path: Path) -> None:
    clock, driver = VirtualClock(), Told()
    slots = FileSlots(tmp_path)
    device = slots_content.SlotDevice(uuid=DeviceUuid("MIG-1"), metered=True)
    slots.create(slots_content.SlotSpec(allocation=NAME, devices=(device,)))
    page = pages.UsagePage.of_slot(slots.path(NAME))
    record = _record(clock, mode="mig", core_percent=50)
    part = replace(record.placement.slices[0], profile="3g.40gb", start=0)
    record = replace(record, placement=replace(record.placement, slices=(part,)))
    usage_tracker = UsageTracker(slots, clock)
    usage_tracker.tick([record])
    told_s = seen_s = 0.0
    steps = ((1, 1.0, 1.0), (2, 1.0, 1.1), (3, 0.0, 1.0), (4, 1.0, 0.9), (5, 0.0, 1.0))
    for _, library_s, driver_s in steps:
        usage_tracker.sample([record], cast("Any", driver))
        clock.advance(1)
        told_s, seen_s = told_s + library_s, seen_s + driver_s
        page._page.device[0].charged_ns = int(told_s * 1e9)
        driver.busy_ns = int(seen_s * 1e9)
    usage_tracker.sample([record], cast("Any", driver))
    driver.busy_ns = None  # it tells nothing any more
    usage_tracker.sample([record], cast("Any", driver))
    (interval,) = usage_tracker.close(record)
    assert interval.used_gpu_s == pytest.approx(5.0 / 2, abs=0.15)


class ClosedMeanwhile(FileSlots):
    """Slots whose allocation is released while its pages are opened."""

    release: Callable[[], object] = staticmethod(lambda: None)

    def pages(self, allocation: AllocationId) -> open_pages.Pages:
        found, release = super().pages(allocation), self.release
        self.release = lambda: None
        release()
        return found


def test_reading_an_allocation_released_meanwhile_leaves_no_entry(tmp_path: Path) -> None:
    clock, driver, slots = VirtualClock(), Told(), ClosedMeanwhile(tmp_path)
    slots.create(slots_content.SlotSpec(allocation=NAME, devices=(slots_content.SlotDevice(uuid=DeviceUuid("GPU-1")),)))
    record = _record(clock, mode="exclusive", core_percent=100)
    usage_tracker = UsageTracker(slots, clock)
    usage_tracker.meters.open_records([record])
    slots.release = lambda: usage_tracker.close(record)
    usage_tracker.sample([record], cast("Any", driver))
    assert not usage_tracker.open_slots()
    for _ in range(2):
        usage_tracker.sample([record], cast("Any", driver))  # who took its records before
        assert not usage_tracker.open_slots()
        usage_tracker.tick([])
    again = replace(record, granted_ns=record.granted_ns + 1)
    usage_tracker.tick([again])
    assert len(usage_tracker.open_slots()) == 1


def _at_grant(clock: VirtualClock, *, boot: str = "b1") -> AllocationRecord:
    return replace(_record(clock), granted_ns=clock.monotonic_ns(), boot=boot)


@pytest.mark.parametrize("set_by_s", [-7200.0, 7200.0])
def test_setting_the_calendar_does_not_change_metered_time(tmp_path: Path, set_by_s: float) -> None:
    clock, written = VirtualClock(), Written()
    clock.advance(5)
    usage_tracker, record = UsageTracker(_slot(tmp_path), clock, meters=Meters(clock, boot="b1")), _at_grant(clock)
    for _ in range(3):
        clock.advance(61)
        clock.set_calendar(set_by_s)
        usage_tracker.checkpoint([record], cast("Any", written))
    written.add_usage(usage_tracker.close(record))
    assert [r.sequence for r in written.all] == [0, 1, 2]
    assert [r.from_s for r in written.all[1:]] == [r.to_s for r in written.all[:-1]]
    assert written.all[0].from_s == record.granted_at
    assert sum(r.to_s - r.from_s for r in written.all) == pytest.approx(183)


def test_interval_with_unknown_write_result_is_written_again_unchanged(tmp_path: Path) -> None:
    class Uncertain(Written):
        fails = True

        def add_usage(self, records: Sequence[UsageRecord]) -> None:
            super().add_usage(records)
            if self.fails:
                self.fails = False
                raise CalabashError("the line to the database broke", reason=Reason.STORE_UNAVAILABLE)

    clock, written = VirtualClock(), Uncertain()
    usage_tracker, record = UsageTracker(_slot(tmp_path), clock), _record(clock)
    clock.advance(60)
    with pytest.raises(CalabashError):
        usage_tracker.checkpoint([record], cast("Any", written))
    clock.advance(60)
    usage_tracker.checkpoint([record], cast("Any", written))
    assert len(written.all) == 1
    clock.advance(60)
    written.add_usage(usage_tracker.close(record))
    assert sum(r.to_s - r.from_s for r in written.all) == pytest.approx(180)


def test_allocation_that_ended_before_its_pool_is_not_charged_while_the_next_waits_for_the_driver(
    tmp_path: Path,
) -> None:
    clock, written = VirtualClock(), Written()
    record = _at_grant(clock)
    slots = _slot(tmp_path)
    clock.advance(30)
    mark = Meters(clock, boot="b1").now()
    clock.advance(70)
    usage_tracker = UsageTracker(slots, clock, meters=Meters(clock, boot="b1", mark=mark))
    usage_tracker.restore(record, None)
    alive: set[AllocationId] = set()
    for _ in range(3):  # rounds in which the driver has not said that its device is free, with a checkpoint among them
        usage_tracker.meters.note_living(alive.__contains__)
        usage_tracker.tick([record])
        usage_tracker.checkpoint([record], cast("Any", written))
        clock.advance(40)
    written.add_usage(usage_tracker.close(record))
    assert sum(r.to_s - r.from_s for r in written.all) == pytest.approx(30)


def test_allocation_used_again_after_its_pool_died_is_metered_without_gap(tmp_path: Path) -> None:
    clock = VirtualClock()
    record = _at_grant(clock)
    slots = _slot(tmp_path)
    clock.advance(30)
    mark = Meters(clock, boot="b1").now()
    clock.advance(70)
    usage_tracker = UsageTracker(slots, clock, meters=Meters(clock, boot="b1", mark=mark))
    usage_tracker.restore(record, None)
    usage_tracker.meters.note_living(lambda _: False)
    clock.advance(5)
    usage_tracker.meters.note_living(lambda _: True)
    clock.advance(5)
    assert sum(r.to_s - r.from_s for r in usage_tracker.close(record)) == pytest.approx(110)


@pytest.mark.parametrize(("seen_alive", "metered_s"), [(False, 30), (True, 100)])
def test_allocation_that_ended_while_no_pool_ran_is_metered_to_its_last_known_moment(
    tmp_path: Path, seen_alive: bool, metered_s: float
) -> None:
    clock = VirtualClock()
    clock.advance(5)
    record = _at_grant(clock)
    slots = _slot(tmp_path)
    clock.advance(30)
    mark = Meters(clock, boot="b1").now()
    clock.advance(70)
    usage_tracker = UsageTracker(slots, clock, meters=Meters(clock, boot="b1", mark=mark))
    usage_tracker.restore(record, None)
    if seen_alive:
        usage_tracker.meters.note_living()
    assert sum(r.to_s - r.from_s for r in usage_tracker.close(record)) == pytest.approx(metered_s)


def test_allocation_of_an_earlier_boot_ends_at_the_last_round_before_it(tmp_path: Path) -> None:
    before, after = VirtualClock(), VirtualClock(now_s=1_700_005_000.0)
    before.advance(1000)
    record = _at_grant(before)
    before.advance(200)
    mark = Meters(before, boot="b1").now()
    usage_tracker = UsageTracker(_slot(tmp_path), after, meters=Meters(after, boot="b2", mark=mark))
    usage_tracker.restore(record, None)
    assert sum(r.to_s - r.from_s for r in usage_tracker.close(record)) == pytest.approx(200)


def test_time_without_gpu_time_is_idle_also_while_no_pool_ran(tmp_path: Path) -> None:
    clock, written = VirtualClock(), Written()
    slots = FileSlots(tmp_path)
    device = slots_content.SlotDevice(uuid=CARD, memory_limit_bytes=MIB, metered=True)
    slots.create(slots_content.SlotSpec(allocation=NAME, devices=(device,)))
    page, record = pages.UsagePage.of_slot(slots.path(NAME)), _record(clock)
    usage_tracker = UsageTracker(slots, clock)
    usage_tracker.tick([record])
    for second in range(20):
        clock.advance(1)
        page._page.device[0].charged_ns += 1_000_000_000 if second < 5 else 0
        usage_tracker.tick([record])
    assert usage_tracker.use(record)[0].idle_s == pytest.approx(15, abs=1)
    clock.advance(45)
    usage_tracker.tick([record])
    usage_tracker.checkpoint([record], cast("Any", written))
    clock.advance(40)
    usage_tracker = UsageTracker(slots, clock)
    usage_tracker.restore(record, written.so_far())
    usage_tracker.meters.note_living()
    written.add_usage(usage_tracker.close(record))
    assert sum(r.idle_s for r in written.all) == pytest.approx(100, abs=1)
    assert sum(r.used_gpu_s for r in written.all) == pytest.approx(5)


def test_allocation_granted_again_under_its_name_is_metered_anew() -> None:
    clock = VirtualClock(now_s=1000.0)
    meters = Meters(clock)
    first = replace(_record(clock), granted_ns=clock.monotonic_ns())
    measured = [Measured(model="T4", used_ns=0, idle_ns=0)]
    clock.advance(10.0)
    (ended,) = meters.close(first, lambda _: measured)
    second = replace(_record(clock), granted_ns=clock.monotonic_ns())
    clock.advance(5.0)
    (going_on,) = meters.cut([second], lambda _: measured)[NAME]
    assert (ended.to_s - ended.from_s, going_on.to_s - going_on.from_s) == (10.0, 5.0)
    assert (going_on.from_s, going_on.sequence) == (1010.0, 0)
