"""``calabash demo``: three tenants on one card, judged by NVML and by the programs; nothing is left of it afterwards."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemons.demo import demo, processes_of, require_limits_held
from tests.daemons.world import until

from calabash.cli.demo.tenants import REQUESTS


@pytest.fixture
def directory() -> Iterator[Path]:
    """Yield an empty directory for temporary files; its path is short, because the demo's sockets are in it."""
    with tempfile.TemporaryDirectory(prefix="demo") as made:
        yield Path(made)


def test_two_demos_at_the_same_time_find_no_limit_exceeded_and_leave_nothing(directory: Path) -> None:
    with demo(directory, "--seconds", "7") as first, demo(directory, "--seconds", "7") as second:
        require_limits_held(first)
        require_limits_held(second)
    assert list(directory.iterdir()) == []
    assert processes_of(directory) == []


@pytest.mark.parametrize("line", ["using simulated cards", "pool is up"])
def test_ctrl_c_ends_the_demo_and_leaves_nothing(directory: Path, line: str) -> None:
    """The pool is being started when the first line is printed, and programs when the second is."""
    with demo(directory) as process:
        assert process.stdout is not None
        for said in process.stdout:
            if line in said:
                break
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 130, output
        assert output.endswith("interrupted\n")
    until(lambda: not processes_of(directory), what="the end of all processes of the demo")
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("line", ["$ calabash demo", "using simulated cards", "pool is up"])
def test_killed_demo_leaves_no_process_and_no_file(directory: Path, line: str) -> None:
    """The home is made after the first line, the pool is started after the second, and programs run after the third."""
    with demo(directory, "--seconds", "300") as process:
        assert process.stdout is not None
        for said in process.stdout:
            if line in said:
                break
        if line == "pool is up":
            until(
                lambda: sum("tenant_program.py" in text for text in processes_of(directory)) == len(REQUESTS),
                what="the start of all programs",
            )
        process.kill()
        process.wait()
    until(lambda: not processes_of(directory), what="the end of all processes of the demo")
    assert list(directory.iterdir()) == []
