"""Tenants of the demo: a limit that did not hold is named."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from calabash.cli.demo.tenants import TenantRun
from calabash.model.units import MIB


def run_of(said: dict[str, Any], *, code: int = 0) -> TenantRun:
    """Return the run of a program that prints a line and ends when its standard input is closed."""
    program = f"import sys; print({json.dumps(said)!r}); sys.stdin.read(); sys.exit({code})"
    process = subprocess.Popen([sys.executable, "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    return TenantRun(name="vision", cores_percent=50, memory_mib=1000, process=process)


def said(*, held_mib: int = 900, total_mib: int = 1000) -> dict[str, Any]:
    return {"memory_held_bytes": held_mib * MIB, "memory_total_bytes": total_mib * MIB}


def broken(run: TenantRun, *, used_mib: int = 1000, share: float | None = 50.0) -> list[str]:
    pid = run.process.pid
    run.observe({pid: used_mib * MIB}, {} if share is None else {pid: share})
    assert run.process.stdin is not None
    run.process.stdin.close()
    run.process.wait()
    return run.broken_limits()


def test_limits_that_held_give_no_sentence() -> None:
    run = run_of(said())
    assert broken(run) == []
    assert (run.used_mib_max, run.share_percent) == (1000, 50.0)


@pytest.mark.parametrize(
    ("printed", "observed", "sentence"),
    [
        ({}, {"used_mib": 1001}, "vision used 1001 MiB of 1000"),
        ({"total_mib": 40000}, {}, "vision was told 40000 MiB instead of 1000"),
        ({"held_mib": 700}, {}, "vision could hold 700 MiB of 1000"),
        ({"held_mib": 1001}, {}, "vision could hold 1001 MiB of 1000"),
        ({}, {"share": 53.5}, "vision got 53.5% of the card instead of 50%"),
        ({}, {"share": None}, "NVML reported no share of vision"),
    ],
)
def test_a_limit_that_did_not_hold_is_named(printed: dict[str, int], observed: dict[str, Any], sentence: str) -> None:
    assert broken(run_of(said(**printed)), **observed) == [sentence]


def test_samples_that_are_missing_in_many_answers_are_no_shares() -> None:
    run = run_of(said())
    pid = run.process.pid
    for number in range(10):
        run.observe({pid: 1000 * MIB}, {pid: 99.0} if number % 3 == 0 else {pid + 1: 99.0})
    assert not run.is_sampled
    assert run.process.stdin is not None
    run.process.stdin.close()
    run.process.wait()
    assert run.broken_limits(by_samples=False) == []


def test_answers_without_any_sample_do_not_count() -> None:
    run = run_of(said())
    pid = run.process.pid
    for number in range(10):
        run.observe({pid: 1000 * MIB}, {pid: 50.0} if number % 3 == 0 else {})
    assert run.is_sampled
    assert broken(run) == []


def test_what_the_driver_rounds_up_is_not_above_the_limit() -> None:
    run = run_of(said())
    run.rounding_mib = 2
    assert broken(run, used_mib=1002) == []
    other = run_of(said())
    other.rounding_mib = 2
    assert broken(other, used_mib=1003) == ["vision used 1003 MiB of 1000"]


def test_a_program_that_failed_is_named_with_its_exit_code() -> None:
    assert broken(run_of(said(), code=3)) == ["vision ended with 3"]
