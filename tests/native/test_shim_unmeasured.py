"""Tests of kernels that were never measured: how long other launches wait for one, and its charge while it runs.

The parts of the library that decide this run alone, with a clock and a driver of the test.
"""

from __future__ import annotations

import subprocess

import pytest
from tests.native.shim_world import program

MEAN_US = 2_000_000
KERNEL_MS = 2_000
STEP_US = 25_000  # a running kernel is charged every 20 ms, and the test looks every 5 ms


def _microseconds(*words: object) -> list[int]:
    command = [str(program("unmeasured")), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


def test_launch_waits_ten_seconds_behind_a_running_kernel_that_was_never_measured() -> None:
    assert _microseconds("gate", 0, 1) == [pytest.approx(10_000_000, abs=50_000)]


def test_launch_waits_one_second_behind_a_measured_kernel_that_does_not_move() -> None:
    assert _microseconds("gate", MEAN_US, 1) == [pytest.approx(1_000_000, abs=50_000)]


@pytest.mark.parametrize("sharers", [1, 4])
def test_kernel_that_was_never_measured_is_charged_its_part_of_the_time_while_it_runs(sharers: int) -> None:
    charged_us = _microseconds("fence", 0, sharers, KERNEL_MS)
    expected_us = [tenth * KERNEL_MS * 100 // sharers for tenth in range(1, 11)]
    assert charged_us == pytest.approx(expected_us, abs=STEP_US)


def test_measured_kernel_is_charged_once_when_it_is_launched() -> None:
    assert _microseconds("fence", MEAN_US, 1, KERNEL_MS) == [MEAN_US] * 10


def test_charge_is_exact_when_a_kernel_that_was_never_measured_is_done() -> None:
    assert _microseconds("fence", 0, 1, KERNEL_MS)[-1] == pytest.approx(KERNEL_MS * 1_000, abs=10)
