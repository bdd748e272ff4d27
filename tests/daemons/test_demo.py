"""``calabash demo``: three tenants on one card, judged by NVML and by the programs; nothing is left of it afterwards."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.daemons.world import until

SHORTFALL = re.compile(r"\w+ got ([\d.]+)% of the card instead of (\d+)%")


@pytest.fixture
def directory() -> Iterator[Path]:
    """Yield an empty directory for temporary files; its path is short, because the demo's sockets are in it."""
    with tempfile.TemporaryDirectory(prefix="demo") as made:
        yield Path(made)


@contextmanager
def demo(directory: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Start the demo as at a terminal, where Ctrl-C is sent to all processes of its group."""
    with subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, "-m", "calabash.cli.main", "demo", "--simulated", *options],
        env=os.environ | {"TMPDIR": str(directory), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)


def processes_of(directory: Path) -> list[str]:
    """Return the command lines of the processes that have a path of the directory in it or in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(directory).encode() in text:
            found.append((entry / "cmdline").read_text())
    return found


def require_limits_held(process: subprocess.Popen[str]) -> None:
    """Assert that the demo found no limit exceeded.

    A share below the requested one is accepted, because programs that wait for a processor do not keep the card busy.
    ``bench/shares.py`` measures whether shares are reached, and `tests/native` tests it in virtual time.
    """
    output, _ = process.communicate(timeout=240)
    said = " ".join(output.split())
    assert "no process and no file of the demo is left" in said, output
    if process.returncode == 0:
        assert "every limit held" in said
        return
    broken = said.partition("a limit was broken: ")[2].partition(" no process and no file")[0]
    for sentence in broken.split("; "):
        found = SHORTFALL.fullmatch(sentence)
        assert found is not None, output
        assert 0 < float(found[1]) < float(found[2]), output


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
