"""Calendar time at which a process started, although the calendar was set to another time afterwards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from calabash.adapters.host.calendar_steps import STEPS_MAX, CalendarSteps
from calabash.adapters.host.processes import Process

BOOTED_S = 1_700_000_000.0
TICKS = os.sysconf("SC_CLK_TCK")


class Machine:
    """Machine that was booted 100 s ago, and whose calendar a test can set."""

    def __init__(self) -> None:
        self.since_boot_s = 100.0
        self.booted_s = BOOTED_S

    def steps(self, file: Path | None = None, boot: str = "b1") -> CalendarSteps:
        return CalendarSteps(
            file,
            boot=boot,
            now_s=lambda: self.booted_s + self.since_boot_s,
            since_boot_s=lambda: self.since_boot_s,
        )


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_start_of_a_process_stays_by_the_calendar_of_its_time_when_the_calendar_is_set(
    tmp_path: Path, jump_s: float
) -> None:
    machine = Machine()
    steps = machine.steps(tmp_path / "calendar.json")
    before, after = Process(pid=1, start_time=50 * TICKS), Process(pid=2, start_time=300 * TICKS)
    assert steps.began_s(before) == BOOTED_S + 50
    machine.since_boot_s, machine.booted_s = 200.0, BOOTED_S + jump_s
    steps.observe()
    assert (steps.began_s(before), steps.began_s(after)) == (BOOTED_S + 50, BOOTED_S + jump_s + 300)
    machine.since_boot_s = 400.0
    again = machine.steps(tmp_path / "calendar.json")
    assert (again.began_s(before), again.began_s(after)) == (BOOTED_S + 50, BOOTED_S + jump_s + 300)


def test_steps_of_another_boot_and_of_a_damaged_file_do_not_count(tmp_path: Path) -> None:
    machine, file = Machine(), tmp_path / "calendar.json"
    machine.steps(file)
    machine.booted_s = BOOTED_S + 5000
    assert machine.steps(file, boot="b2").calendar_s(50.0) == BOOTED_S + 5050
    file.write_bytes(b"{")
    assert machine.steps(file).calendar_s(50.0) == BOOTED_S + 5050


def test_slow_adjustment_is_no_step_and_the_number_of_steps_is_bounded() -> None:
    machine = Machine()
    steps = machine.steps()
    machine.booted_s += 0.01
    steps.observe()
    assert steps.calendar_s(50.0) == BOOTED_S + 50
    for _ in range(2 * STEPS_MAX):
        machine.since_boot_s += 1
        machine.booted_s += 10
        steps.observe()
    assert len(steps._booted) == STEPS_MAX
    assert steps.calendar_s(machine.since_boot_s) == machine.booted_s + machine.since_boot_s
