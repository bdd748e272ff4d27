"""Ends recorded while no pool runs: polls, files, and the time that is charged."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from calabash.adapters.host.cgroups.groups import Cgroup
from calabash.model.allocation import AllocationRecord, AllocationState, UsageRecord, UsageSoFar
from calabash.model.device import DeviceUuid, NodeName
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement, Slice
from calabash.node.metering.end_file import DIRECTORY, EndFile, LastSeen, read_ends, replace_ends
from calabash.node.metering.end_recorder import LINGER_NS, EndRecorder, GroupWitness, LeaseWitness, read_hosts
from calabash.node.metering.interval import KNOWN_NS, Measured, Meter, Moment, open_meter, resume_meter
from calabash.node.metering.meters import Meters
from calabash.node.metering.recorded_ends import RecordedEnds
from calabash_testing.clock import VirtualClock

BOOT = "b1"
S = 1_000_000_000
MEASURED = [Measured(model="T4", used_ns=0, idle_ns=0)]


def _record(*, granted_ns: int, boot: str = BOOT, granted_at: float = 1000.0) -> AllocationRecord:
    part = Slice(device=DeviceUuid("GPU-1"), memory_mib=1024, core_percent=50)
    return AllocationRecord(
        id=AllocationId("a1"),
        state=AllocationState.RUNNING,
        request=GpuRequest(memory_mib=1024, core_percent=50),
        placement=Placement(node=NodeName("n"), mode=ModeName("vgpu"), slices=(part,)),
        granted_at=granted_at,
        granted_ns=granted_ns,
        boot=boot,
        slot="/home/alloc/s1",
    )


class Kernel:
    """Membership as set by the test."""

    def __init__(self, **alive: bool) -> None:
        self.alive = dict(alive)

    def names(self) -> list[str]:
        return list(self.alive)

    def populated(self, name: str) -> bool:
        return self.alive[name]


# -- looks and files ---------------------------------------------------------------------------------------------------


def test_recorder_writes_when_each_allocation_was_last_alive_and_first_ended(tmp_path: Path) -> None:
    clock = VirtualClock()
    kernel = Kernel(s1=True, s2=True, s3=False)
    recorder = EndRecorder(EndFile(tmp_path, BOOT), kernel, clock.monotonic_ns)
    clock.advance(5)
    begun_ns = clock.monotonic_ns()
    assert recorder.poll()
    clock.advance(1)
    kernel.alive["s1"] = False
    gone_ns = clock.monotonic_ns()
    assert recorder.poll()
    clock.advance(1)
    assert recorder.poll()
    assert read_ends(tmp_path, BOOT) == {
        "s1": LastSeen(alive_ns=begun_ns, gone_ns=gone_ns),
        "s2": LastSeen(alive_ns=clock.monotonic_ns()),
        "s3": LastSeen(alive_ns=0, gone_ns=begun_ns),
    }
    assert read_ends(tmp_path, "another boot") == {}


def test_allocation_that_is_taken_after_its_pool_ended_is_recorded_with_its_later_end(tmp_path: Path) -> None:
    clock, kernel = VirtualClock(), Kernel(s1=False)
    recorder = EndRecorder(EndFile(tmp_path, BOOT), kernel, clock.monotonic_ns)
    assert recorder.poll()
    for alive in (True, False):
        clock.advance(3)
        kernel.alive["s1"] = alive
        assert recorder.poll()
    assert read_ends(tmp_path, BOOT)["s1"].gone_ns == clock.monotonic_ns()


def test_recorder_ends_when_nothing_lives_for_a_while_and_when_its_file_is_removed(tmp_path: Path) -> None:
    clock, kernel = VirtualClock(), Kernel(s1=True)
    recorder = EndRecorder(EndFile(tmp_path, BOOT), kernel, clock.monotonic_ns)
    clock.advance(1000)
    assert recorder.poll(), "something lives"
    kernel.alive["s1"] = False
    assert recorder.poll()
    clock.advance(LINGER_NS / S)
    assert not recorder.poll()
    kernel.alive["s1"] = True
    assert recorder.poll()
    replace_ends(tmp_path, BOOT, {})
    assert not recorder.poll()


def test_ends_are_kept_when_files_are_replaced_and_the_latest_file_counts(tmp_path: Path) -> None:
    EndFile(tmp_path, BOOT).close()
    kept = {"s1": LastSeen(alive_ns=5, gone_ns=7), "s2": LastSeen(alive_ns=5, gone_ns=7)}
    replace_ends(tmp_path, BOOT, kept)
    later = EndFile(tmp_path, BOOT)
    later.add("s2", LastSeen(alive_ns=9, gone_ns=11))
    later.flush(12)
    assert read_ends(tmp_path, BOOT) == {"s1": kept["s1"], "s2": LastSeen(alive_ns=9, gone_ns=11)}


def test_full_disk_delays_records_and_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, kernel = VirtualClock(), Kernel(s1=True)
    recorder = EndRecorder(EndFile(tmp_path, BOOT), kernel, clock.monotonic_ns)
    clock.advance(1)
    assert recorder.poll()
    seen_ns = clock.monotonic_ns()
    kernel.alive["s1"] = False
    written = os.pwrite

    def full(descriptor: int, data: bytes, offset: int) -> int:
        del descriptor, data, offset
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    clock.advance(1)
    gone_ns = clock.monotonic_ns()
    assert recorder.poll()
    assert read_ends(tmp_path, BOOT) == {"s1": LastSeen(alive_ns=seen_ns)}, "its end is not known, nor that it lives"
    monkeypatch.setattr(os, "pwrite", written)
    clock.advance(1)
    assert recorder.poll()
    assert read_ends(tmp_path, BOOT) == {"s1": LastSeen(alive_ns=seen_ns, gone_ns=gone_ns)}


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"b1\n", b"b1 x\n", b"b1 5\ns1 1 2", b"b1 5\nnonsense\ns1 1\n"])
def test_damaged_or_incomplete_file_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / DIRECTORY).mkdir()
    (tmp_path / DIRECTORY / "f").write_bytes(content)
    assert read_ends(tmp_path, BOOT) == {}


def test_lease_is_populated_as_long_as_its_lock_is_held(tmp_path: Path) -> None:
    (tmp_path / "s1").mkdir()
    lease = tmp_path / "s1" / "lease"
    lease.touch()
    witness = LeaseWitness(tmp_path)
    assert witness.names() == ["s1"]
    assert not witness.populated("s1")
    with lease.open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        assert witness.populated("s1")
    assert not witness.populated("s1")
    assert not witness.populated("s2")


# -- what is charged ---------------------------------------------------------------------------------------------------


def _closed(
    *,
    mark_s: float,
    restart_s: float,
    seen: LastSeen | None,
    worked_s: float = 0.0,
    written_s: float = 0.0,
    rounds_s: Sequence[float] = (),
    set_by_s: float = 0.0,
) -> list[UsageRecord]:
    """Return the usage of an allocation granted at 0 that a pool finds without a member process at ``restart_s``."""
    clock = VirtualClock()
    clock.advance(5)
    record = _record(granted_ns=clock.monotonic_ns(), granted_at=clock.now_s())
    base_ns, at_s = record.granted_ns, record.granted_at
    mark = Moment(boot=BOOT, monotonic_ns=base_ns + round(mark_s * S), now_s=at_s + mark_s)
    clock.advance(restart_s)
    clock.set_calendar(set_by_s)
    shifted = seen and LastSeen(
        alive_ns=seen.alive_ns and base_ns + seen.alive_ns, gone_ns=seen.gone_ns and base_ns + seen.gone_ns
    )
    meters = Meters(clock, boot=BOOT, mark=mark, seen=lambda _: shifted)
    so_far = UsageSoFar(until_s=at_s + written_s, next_sequence=1, used_gpu_s={0: 0.0}) if written_s else None
    meter = meters.resume(record, so_far)
    meter.note_activity(base_ns + round(worked_s * S), meter.offset_ns(clock.monotonic_ns()))
    for pause_s in rounds_s:  # the driver has not said that its device is free
        meters.note_living(lambda _: False)
        clock.advance(pause_s)
    return list(meters.close(record, lambda _: MEASURED))


def _at(seconds: float) -> int:
    return round(seconds * S)


@pytest.mark.parametrize(
    ("seen", "charged_s", "uncertain_s"),
    [
        (LastSeen(alive_ns=_at(49.9), gone_ns=_at(50)), 50, 0),
        (LastSeen(alive_ns=0, gone_ns=_at(30.5)), 30.5, 0),  # the recorder's first look: it ended with its pool
        (LastSeen(alive_ns=0, gone_ns=_at(45)), 30, 15),  # the recorder came late
        (LastSeen(alive_ns=_at(40), gone_ns=_at(50)), 40, 10),  # the recorder was stopped meanwhile
        (LastSeen(alive_ns=_at(99.9)), 100, 0),  # it ended just before the pool looked
        (LastSeen(alive_ns=_at(60)), 60, 40),  # the recorder died
        (None, 30, 70),
    ],
)
def test_end_is_as_recorded_and_marked_uncertain_if_its_bounds_are_far_apart(
    seen: LastSeen | None, charged_s: float, uncertain_s: float
) -> None:
    (record,) = _closed(mark_s=30, restart_s=100, seen=seen)
    assert record.to_s - record.from_s == pytest.approx(charged_s)
    assert record.uncertain_s == pytest.approx(uncertain_s)


@pytest.mark.parametrize("set_by_s", [-86_400.0, 7200.0])
@pytest.mark.parametrize("seen", [LastSeen(alive_ns=_at(49.9), gone_ns=_at(50)), None])
def test_end_is_unchanged_if_the_calendar_is_set_while_no_pool_runs(set_by_s: float, seen: LastSeen | None) -> None:
    (before,) = _closed(mark_s=30, restart_s=100, seen=seen)
    (after,) = _closed(mark_s=30, restart_s=100, seen=seen, set_by_s=set_by_s)
    assert after == before


@pytest.mark.parametrize("worked_s", [0.0, 10.0, 45.0, 49.95, 70.0, 1e6])
def test_usage_page_does_not_change_an_end_that_the_kernel_knows(worked_s: float) -> None:
    seen = LastSeen(alive_ns=_at(49.9), gone_ns=_at(50))
    (record,) = _closed(mark_s=30, restart_s=100, seen=seen, worked_s=worked_s)
    assert record.to_s - record.from_s == pytest.approx(50)
    assert record.uncertain_s == 0


@pytest.mark.parametrize(("worked_s", "charged_s"), [(-5.0, 30), (10.0, 30), (64.0, 64), (1e9, 100)])
def test_usage_page_only_lengthens_the_charge_of_an_estimated_end(worked_s: float, charged_s: float) -> None:
    (record,) = _closed(mark_s=30, restart_s=100, seen=None, worked_s=worked_s)
    assert record.to_s - record.from_s == pytest.approx(charged_s)
    assert record.uncertain_s == pytest.approx(100 - charged_s)


def test_slow_driver_does_not_widen_the_bounds_of_an_end() -> None:
    (record,) = _closed(mark_s=30, restart_s=100, seen=None, rounds_s=[20, 20])
    assert record.to_s - record.from_s == pytest.approx(30)
    assert record.uncertain_s == pytest.approx(70)


def test_round_of_a_later_pool_does_not_change_a_recorded_end() -> None:
    (record,) = _closed(mark_s=90, restart_s=100, seen=LastSeen(alive_ns=_at(49.9), gone_ns=_at(50)))
    assert record.to_s - record.from_s == pytest.approx(50)
    assert record.uncertain_s == 0


def test_estimated_end_is_marked_uncertain_if_all_intervals_are_written() -> None:
    (record,) = _closed(mark_s=30, restart_s=100, seen=None, written_s=30)
    assert record.to_s - record.from_s == pytest.approx(1e-6, abs=1e-6)
    assert record.uncertain_s == pytest.approx(70)


def test_bounds_of_an_allocation_that_waits_for_its_driver_are_passed_to_the_next_pool() -> None:
    clock = VirtualClock()
    clock.advance(7)
    record = _record(granted_ns=clock.monotonic_ns(), granted_at=clock.now_s())
    clock.advance(30)
    first = Meters(clock, boot=BOOT)
    mark = first.now()
    clock.advance(70)
    second = Meters(clock, boot=BOOT, mark=mark)
    second.resume(record, None)
    second.note_living(lambda _: False)
    kept = second.ended()
    assert kept == {"s1": LastSeen(alive_ns=record.granted_ns + _at(30), gone_ns=record.granted_ns + _at(100))}
    clock.advance(50)
    mark = second.now()  # of the pool that saw it gone, and was killed before its driver answered
    clock.advance(50)
    third = Meters(clock, boot=BOOT, mark=mark, seen=lambda _: kept["s1"])
    third.resume(record, None)
    (usage,) = third.close(record, lambda _: MEASURED)
    assert usage.to_s - usage.from_s == pytest.approx(30)
    assert usage.uncertain_s == pytest.approx(70)


def test_end_before_a_reboot_is_estimated_between_the_last_round_and_the_boot() -> None:
    before = VirtualClock()
    before.advance(500)
    record = _record(granted_ns=before.monotonic_ns(), granted_at=before.now_s())
    before.advance(200)
    mark = Meters(before, boot=BOOT).now()
    after = Moment(boot="b2", monotonic_ns=_at(40), now_s=record.granted_at + 300)  # booted at 260
    meter = resume_meter(record, after, None, mark)
    low_ns, high_ns = meter.bounds(None, after.monotonic_ns)
    assert (low_ns, high_ns) == pytest.approx((_at(200), _at(260)), abs=S / 1000)


@settings(max_examples=examples(300), deadline=None)
@given(
    mark=st.floats(0, 100),
    alive=st.floats(0, 1),
    end=st.floats(0, 1),
    gone=st.floats(0, 1),
    worked=st.floats(-1e3, 1e6),
    written=st.floats(0, 1),
    recorded=st.booleans(),
)
def test_end_lies_between_the_recorded_bounds_for_any_usage_page(
    *, mark: float, alive: float, end: float, gone: float, worked: float, written: float, recorded: bool
) -> None:
    """``alive``, ``end`` and ``gone`` are moments between the mark and the restart, in order."""
    restart = 200.0
    alive, end, gone = (mark + (restart - mark) * part for part in sorted((alive, end, gone)))
    meter: Meter = open_meter(_record(granted_ns=5), Moment(boot=BOOT, monotonic_ns=5, now_s=1000.0))
    meter = replace(meter, lived_until_ns=_at(mark), until_ns=_at(mark * written))
    meter.note_activity(_at(worked) + 5, _at(restart))
    seen = LastSeen(alive_ns=_at(alive) + 5, gone_ns=_at(gone) + 5) if recorded else None
    low_ns, high_ns = meter.bounds(seen, _at(restart) + 5)
    assert meter.until_ns <= low_ns <= high_ns <= _at(restart)
    honest = worked <= end
    if honest:
        assert low_ns <= _at(end) + 1
        assert high_ns >= _at(end) - 1
    assert low_ns >= (_at(alive) if recorded else _at(mark)), "no page shortens what was seen"
    meter.settle(low_ns, high_ns)
    charged_ns = meter.end_ns(0)
    assert low_ns <= charged_ns <= high_ns
    assert meter.uncertain_ns in (0, high_ns - low_ns)
    assert meter.uncertain_ns == 0 or meter.uncertain_ns > KNOWN_NS


def test_worker_of_a_brokered_allocation_does_not_count_as_its_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = {"s1": [7, 8], "s2": [9]}
    monkeypatch.setattr(Cgroup, "children", lambda _: list(members))
    monkeypatch.setattr(Cgroup, "pids", lambda group: members[group.directory.name])
    monkeypatch.setattr(Cgroup, "populated", lambda group: bool(members[group.directory.name]))
    (tmp_path / "workers.json").write_text('[{"allocation": "a1", "pid": 7, "start_time": 1, "name": "s1"}]')
    witness = GroupWitness(tmp_path, read_hosts(tmp_path))
    assert witness.names() == ["served:s1", "s2"]
    assert witness.populated("served:s1")
    members["s1"] = [7]
    assert not witness.populated("served:s1")
    assert witness.populated("s2")


@pytest.mark.parametrize("content", ["", "{", "{}", "[1]", '[{"pid": 7}]', "null"])
def test_damaged_file_of_workers_names_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "workers.json").write_text(content)
    assert read_hosts(tmp_path) == {}


@pytest.mark.parametrize(("mode", "charged_s"), [("brokered", 40), ("vgpu", 50)])
def test_brokered_allocation_is_charged_by_the_record_without_its_worker(
    tmp_path: Path, mode: str, charged_s: float
) -> None:
    record = _record(granted_ns=5)
    record = replace(record, placement=replace(record.placement, mode=ModeName(mode)))
    file = EndFile(tmp_path, BOOT)
    file.add("s1", LastSeen(alive_ns=_at(49.9) + 5, gone_ns=_at(50) + 5))
    file.add("served:s1", LastSeen(alive_ns=_at(39.9) + 5, gone_ns=_at(40) + 5))
    file.flush(_at(51))
    clock = VirtualClock()
    clock.advance(100)
    mark = Moment(boot=BOOT, monotonic_ns=_at(30) + 5, now_s=1030.0)
    meters = Meters(clock, boot=BOOT, mark=mark, seen=RecordedEnds(tmp_path, BOOT, ()).last_seen)
    meters.resume(record, None)
    (usage,) = meters.close(record, lambda _: MEASURED)
    assert usage.to_s - usage.from_s == pytest.approx(charged_s)
