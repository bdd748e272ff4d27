"""Pool of the demo: a pool in a temporary home, which is removed with everything in it when the demo ends.

The home is made and removed by a process of its own (``cleanup.py``), which also does so if the demo is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from calabash.adapters.gpu.sim import STATE_FILE
from calabash.adapters.host.children import LIBRARIES, start_module
from calabash.model.errors import CalabashError, Reason

SIM_NODE = "demo"
SIM_CARDS = "2xA100-40GB"
RELEASED_WITHIN_S = 5.0


class DemoPool:
    """Context in which a pool can be started; its exit ends the pool and all programs, and removes the home."""

    def __init__(self) -> None:
        """Start the cleanup process. Raises CalabashError if it cannot make the home."""
        self._programs: list[subprocess.Popen[bytes]] = []
        ending, self._running = os.pipe()
        with open(ending, "rb") as end:
            self._cleanup = start_module(
                "calabash.cli.demo.cleanup",
                tempfile.gettempdir(),
                stdin=end,
                stdout=subprocess.PIPE,
                new_session=True,  # Ctrl-C must not end it
            )
        assert self._cleanup.stdout is not None
        said = os.fsdecode(self._cleanup.stdout.readline())
        if not said.endswith("\n"):
            raise CalabashError(
                f"no directory for the demo could be made: {said or 'the cleanup process has ended'}",
                reason=Reason.CONFLICT,
                hint="name a directory that you may write to in TMPDIR",
            )
        self.home = Path(said[:-1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for program in self._programs:
            if program.poll() is None:
                program.kill()
            program.wait()
        os.close(self._running)
        if self._cleanup.wait():
            raise CalabashError(
                "the demo's pool has not ended", reason=Reason.CONFLICT, hint=f"see {self.home}/pool.log"
            )

    def call(self, *words: str) -> str:
        """Run a command of the product and return its output.

        Raises CalabashError with the command's error, or KeyboardInterrupt if Ctrl-C ended it.
        """
        with self._start(*words, stderr=subprocess.PIPE, pass_fds=(self._running,)) as process:
            output, error = (text.decode(errors="replace") for text in process.communicate())
        if process.returncode == -signal.SIGINT:  # sent to the demo before the command had a session of its own
            raise KeyboardInterrupt
        if process.returncode:
            raise CalabashError(
                f"calabash {' '.join(words)}: {error.strip().removeprefix('error: ')}", reason=Reason.CONFLICT
            )
        return output

    def _start(self, *words: str, stderr: int | None = None, pass_fds: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
        return start_module(
            "calabash.cli.main",
            *words,
            inherit=LIBRARIES,
            environment={"CALABASH_HOME": str(self.home)},
            stdout=subprocess.PIPE,
            stderr=stderr,
            pass_fds=pass_fds,  # the cleanup waits for the commands that have this descriptor
            new_session=True,  # Ctrl-C must not end a command in the middle
        )

    def simulate(self) -> Path:
        """Create a simulated node; return its state file."""
        self.call("sim", "create", SIM_NODE, "--gpus", SIM_CARDS)
        return self.home / "sim" / SIM_NODE / STATE_FILE

    def up(self, *, simulated: bool) -> str:
        """Start the pool; return the text that the command prints."""
        return self.call("up", "--console", "off", *(("--sim", SIM_NODE) if simulated else ()))

    def run(self, tenant: str, memory_mib: int, cores_percent: int, seconds: float) -> subprocess.Popen[bytes]:
        """Create a tenant and start its program on a slice; the process becomes the program when the slice is granted."""
        self.call("tenant", "create", tenant)
        program = [sys.executable, str(Path(__file__).with_name("tenant_program.py")), "--seconds", str(seconds)]
        amounts = ["--memory", f"{memory_mib}MiB", "--cores", str(cores_percent)]
        started = self._start("run", "--tenant", tenant, *amounts, "--", *program)
        self._programs.append(started)
        return started

    def unreleased(self) -> list[str]:
        """Return the IDs of the allocations that are not released within RELEASED_WITHIN_S."""
        deadline = time.monotonic() + RELEASED_WITHIN_S
        while True:
            held: list[dict[str, Any]] = json.loads(self.call("ps", "-o", "json"))["items"]
            if not held or time.monotonic() > deadline:
                return [str(allocation["id"]) for allocation in held]
            time.sleep(0.1)
