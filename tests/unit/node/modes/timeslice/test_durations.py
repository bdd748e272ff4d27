"""TurnLengths are as an operator wants them while a card is used so, and afterwards as they were, whatever dies in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from calabash.model.device import DeviceUuid, Interval
from calabash.model.errors import CalabashError, Reason
from calabash.node.modes.timeslice.durations import TurnLengths

ONE, TWO = DeviceUuid("GPU-1"), DeviceUuid("GPU-2")


class Driver:
    """Cards with a class each."""

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
    """A driver, what operators want, and pools one after another."""

    def __init__(self, home: Path) -> None:
        self.file = home / "timeslices.json"
        self.driver = Driver()
        self.wanted = {ONE: "short", TWO: ""}
        self.turns = self.pool()

    def pool(self) -> TurnLengths:
        return TurnLengths(self.file, cast("Any", self.driver), wanted=lambda uuid: self.wanted[uuid])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def nobody() -> tuple[DeviceUuid, ...]:
    return ()


def test_the_class_is_set_for_the_first_tenant_and_put_back_after_the_last(world: World) -> None:
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
def test_whenever_a_pool_dies_the_next_one_puts_back_what_was_there(world: World, dies_at: int) -> None:
    world.driver.dies_at = dies_at  # asked what it is, then set
    with pytest.raises(KeyboardInterrupt):
        world.turns.apply([ONE])
    world.driver.now[ONE] = Interval.SHORT if dies_at == 2 else world.driver.now[ONE]
    world.pool().keep_only(nobody)
    assert world.driver.now[ONE] is Interval.MEDIUM


def test_the_next_pool_keeps_the_turns_of_who_is_still_there(world: World) -> None:
    world.turns.apply([ONE])
    later = world.pool()
    later.keep_only(lambda: [ONE])
    assert later.check(lambda: [ONE], ask=True) == []
    assert world.driver.now[ONE] is Interval.SHORT
    later.keep_only(nobody)
    assert world.driver.now[ONE] is Interval.MEDIUM


def test_what_an_operator_wants_otherwise_holds_for_who_is_there_already(world: World) -> None:
    world.turns.apply([ONE])
    world.wanted[ONE] = "long"
    assert world.turns.check(lambda: [ONE], ask=False) == []
    assert world.driver.now[ONE] is Interval.LONG
    world.wanted[ONE] = ""
    world.turns.check(lambda: [ONE], ask=False)
    assert world.driver.now[ONE] is Interval.MEDIUM


def test_what_somebody_else_has_changed_is_set_again_and_told(world: World) -> None:
    world.turns.apply([ONE])
    world.driver.now[ONE] = Interval.LONG
    assert world.turns.check(lambda: [ONE], ask=False) == []
    (told,) = world.turns.check(lambda: [ONE], ask=True)
    assert "long" in told
    assert world.driver.now[ONE] is Interval.SHORT


def test_a_driver_that_cannot_do_it_is_left_alone_and_people_are_told(world: World) -> None:
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


def test_where_the_driver_does_not_say_what_was_its_default_is_put_back(world: World) -> None:
    world.driver.silent = True
    world.turns.apply([ONE])
    world.turns.keep_only(nobody)
    assert world.driver.now[ONE] is Interval.DEFAULT


def test_what_cannot_be_put_back_is_tried_again(world: World) -> None:
    world.turns.apply([ONE])
    world.driver.refuses = True
    world.turns.keep_only(nobody)
    assert world.file.exists()
    world.driver.refuses = False
    world.turns.keep_only(nobody)
    assert world.driver.now[ONE] is Interval.MEDIUM


def test_a_file_that_cannot_be_read_does_no_harm(world: World) -> None:
    world.file.write_text("{")
    world.pool().keep_only(nobody)
    assert world.driver.now[ONE] is Interval.MEDIUM
