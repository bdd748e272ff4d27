"""All sharing modes on one node under random steps and faults.

Records of the agent, devices, machine and journal must agree, and nothing may be left on the machine at the end.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.daemons.world import HANG_S, until

from calabash.adapters.gpu import sim
from calabash.adapters.host.mounts import unmount

ROOT = Path(__file__).resolve().parents[2]
CARDS = "2xA100-80GB,1xH100,1xT4"
STEPS = int(os.environ.get("CALABASH_STEPS", "1000"))
LIVES = 5


class Lives:
    """Agent of one node that is killed and started again several times."""

    def __init__(self, home: Path, steps: int) -> None:
        self.home = home
        self.steps = steps
        self.counter = home / "steps"
        self.counter.write_bytes(bytes(8))
        self.log = home / "log"
        self.log.touch()
        sim.create_node(home, "lab", CARDS)

    @property
    def done(self) -> int:
        """Return the number of steps of all runs."""
        return int(struct.unpack("<q", self.counter.read_bytes())[0])

    def begin(self, seed: int) -> subprocess.Popen[bytes]:
        arguments = [self.home, seed, self.steps, self.counter]
        command = [sys.executable, "-m", "tests.daemons.programs.every_mode", *map(str, arguments)]
        with self.log.open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def until_steps(self, process: subprocess.Popen[bytes], goal: int) -> None:
        """Wait until all runs together made so many steps, or this run has ended."""
        until(lambda: self.done >= goal or process.poll() is not None, within_s=5 * HANG_S, what="its steps")

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Yield a home in memory if possible: no power failure is tested, so that writes need not wait for a disk."""
    fast = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="calabash-", dir=fast if os.access(fast, os.W_OK) else tmp_path))
    yield made
    for slot in made.glob("alloc/*"):  # of runs that failed
        with suppress(OSError):
            unmount(slot)
    shutil.rmtree(made, ignore_errors=True)


def test_steps_in_all_modes_with_deaths_between_them_leave_nothing(home: Path) -> None:
    lives, chance = Lives(home, STEPS), random.Random(5)
    for life in range(LIVES - 1):
        with lives.begin(life) as process:
            lives.until_steps(process, STEPS * (life + 1) // LIVES)
            time.sleep(chance.random() * 0.02)
            process.kill()
        assert process.returncode == -signal.SIGKILL, lives.said()
    with lives.begin(LIVES) as process:
        assert process.wait() == 0, lives.said()
    assert lives.done == STEPS
