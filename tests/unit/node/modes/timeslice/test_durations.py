"""Time-slice durations: set as the operator wants them while a device is used, restored afterwards, also after a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from calabash.model.device import DeviceUuid, Interval
from calabash.model.errors import CalabashError, Reason
from calabash.node.modes.timeslice.durations import TimeSliceDurations

ONE, TWO = DeviceUuid("GPU-1"), DeviceUuid("GPU-2")


class Driver:
    """Driver with a duration class per card."""

    def __init__(self) -> None:
        self.now = {ONE: Interval.MEDIUM, TWO: Interval.DEFAULT}
        self.refuses = self.silent = False
        self.calls = 0
        self.dies_at = -1

    def interval(self, uuid: DeviceUuid) -> Interval | None:
        self._call()
        return None if self.silent else self.now[uuid]

    def set(self, uuid: DeviceUuid, interval: Interval) -> None:
        self._call()
        self.now[uuid] = interval

    def _call(self) -> None:
        self.calls += 1
        if self.refuses:
            raise CalabashError("not supported", reason=Reason.UNSUPPORTED)
        if self.calls == self.dies_at:
            raise KeyboardInterrupt


class World:
    """Driver, operators' settings, and successive pools."""

    def __init__(self, home: Path) -> None:
        self.file = home / "timeslices.json"
        self.driver = Driver()
        self.wanted = {ONE: "short", TWO: ""}
        self.turns = self.pool()

    def pool(self) -> TimeSliceDurations:
        return TimeSliceDurations(self.file, cast("Any", self.driver), wanted=lambda uuid: self.wanted[uuid])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def nobody() -> tuple[DeviceUuid, ...]:
    return ()


def test_duration_is_set_for_the_first_tenant_and_restored_after_the_last(world: World) -> None:
    world.turns.apply([ONE, TWO])
    assert world.driver.now == {ONE: Interval.SHORT, TWO: Interval.DEFAULT}
    world.turns.apply([ONE])
    world.turns.keep_only(lambda: [ONE])
    assert world.driver.now[ONE] is Interval.SHORT
    world.turns.keep_only(nobody)
    assert world.driver.now[ONE] is Interval.MEDIUM
    assert not world.file.exists()
    calls = world.driver.calls
    world.turns.keep_only(nobody)
    assert world.driver.calls == calls, "nothing is asked of cards that are as they were"


@pytest.mark.parametrize("dies_at", [1, 2])
def test_duration_is_restored_by_the_next_pool_after_a_crash_at_any_step(world: World, dies_at: int) -> None:
    world.driver.dies_at = dies_at  # asked what it is, then set
    with pytest.raises(KeyboardInterrupt):
        world.turns.apply([ONE])
    world.driver.now[ONE] = Interval.SHORT if dies_at == 2 else world.driver.now[ONE]
    world.pool().keep_only(nobody)
    assert world.driver.now[ONE] is Interval.MEDIUM


def test_duration_of_a_held_device_is_kept_by_the_next_pool(world: World) -> None:
    world.turns.apply([ONE])
    later = world.pool()
    later.keep_only(lambda: [ONE])
    assert later.check(lambda: [ONE], ask=True) == []
    assert world.driver.now[ONE] is Interval.SHORT
    later.keep_only(nobody)
    assert world.driver.now[ONE] is Interval.MEDIUM


def test_changed_setting_applies_to_devices_in_use(world: World) -> None:
    world.turns.apply([ONE])
    world.wanted[ONE] = "long"
    assert world.turns.check(lambda: [ONE], ask=False) == []
    assert world.driver.now[ONE] is Interval.LONG
    world.wanted[ONE] = ""
    world.turns.check(lambda: [ONE], ask=False)
    assert world.driver.now[ONE] is Interval.MEDIUM


def test_duration_changed_from_outside_is_set_again_and_reported(world: World) -> None:
    world.turns.apply([ONE])
    world.driver.now[ONE] = Interval.LONG
    assert world.turns.check(lambda: [ONE], ask=False) == []
    (told,) = world.turns.check(lambda: [ONE], ask=True)
    assert "long" in told
    assert world.driver.now[ONE] is Interval.SHORT


def test_driver_without_support_is_not_asked_again_at_once_and_the_reason_is_kept(world: World) -> None:
    world.driver.refuses = True
    world.turns.apply([ONE])
    assert world.turns.wrong(ONE) == "not supported"
    assert not world.file.exists()
    calls = world.driver.calls
    world.turns.check(lambda: [ONE], ask=False)
    assert world.driver.calls == calls, "it is asked again now and then, and not each second"
    world.driver.refuses = False
    world.turns.check(lambda: [ONE], ask=True)
    assert (world.turns.wrong(ONE), world.driver.now[ONE]) == ("", Interval.SHORT)


def test_default_duration_is_restored_if_the_driver_did_not_report_the_previous_one(world: World) -> None:
    world.driver.silent = True
    world.turns.apply([ONE])
    world.turns.keep_only(nobody)
    assert world.driver.now[ONE] is Interval.DEFAULT


def test_duration_that_cannot_be_restored_is_tried_again(world: World) -> None:
    world.turns.apply([ONE])
    world.driver.refuses = True
    world.turns.keep_only(nobody)
    assert world.file.exists()
    world.driver.refuses = False
    world.turns.keep_only(nobody)
    assert world.driver.now[ONE] is Interval.MEDIUM


def test_damaged_file_of_durations_is_treated_as_empty(world: World) -> None:
    world.file.write_text("{")
    world.pool().keep_only(nobody)
    assert world.driver.now[ONE] is Interval.MEDIUM
