"""The real ``calabash`` command in processes of its own, as a user at a terminal starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from tests.daemons.world import HANG_S, until

TIMEOUT_S = 60.0
# Ctrl-C counts, even when the tests themselves were started with ``&`` by a script, where it is ignored.
_IN_THE_FOREGROUND = ("env", "--default-signal=INT")
TENANT = Path(__file__).resolve().parents[2] / "examples" / "tenant.py"


class Job:
    """A command that runs in the background."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self.pid = process.pid
        self._output = output

    @property
    def text(self) -> str:
        """Return the output of both streams so far."""
        return self._output.read_text(errors="replace")

    def says(self, text: str, *, within_s: float = HANG_S) -> None:
        """Wait until the output contains a text."""
        until(lambda: text in self.text, within_s=within_s, what=f"{text!r}; it said {self.text!r}")

    def running(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def close_input(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()

    def code(self, *, within_s: float = HANG_S) -> int:
        """Wait for the end; return the exit code, negative for a signal."""
        deadline = time.monotonic() + within_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"still running after {within_s} s; it said {self.text!r}"
            time.sleep(0.01)
        return self.process.returncode

    def finish(self) -> int:
        """Close its input and wait for its end."""
        self.close_input()
        return self.code()

    def kill(self) -> None:
        if self.running():
            self.process.kill()
        self.process.wait(timeout=HANG_S)
        self.close_input()


class Terminal:
    """User at a terminal with one pool. ``t("ps")`` runs ``calabash ps``; ``t.start("run", ...)`` leaves a command running."""

    def __init__(self, home: Path, scratch: Path, **environment: str) -> None:
        self.home = home
        self.scratch = scratch
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("CALABASH_", "LD_"))}
        self.environment = clean | {"CALABASH_HOME": str(home), "CALABASH_CONSOLE": "off"} | environment
        self.jobs: list[Job] = []

    def __call__(self, *words: str, stdin: str = "", code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end and check its exit code (None: any)."""
        done = subprocess.run(
            self.words(*words),
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert code is None or done.returncode == code, (words, done)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "calabash.cli.main", *words]

    def start(self, *words: str, own_group: bool = False) -> Job:
        """Start a command with an open pipe as its input; ``own_group`` makes its pid that of a process group."""
        output = self.scratch / f"job{len(self.jobs)}.out"
        with output.open("wb") as sink:
            process = subprocess.Popen(
                [*_IN_THE_FOREGROUND, *self.words(*words)],
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=sink,
                process_group=0 if own_group else None,
            )
        self.jobs.append(Job(process, output))
        return self.jobs[-1]

    def start_holder(self, *options: str) -> Job:
        """Start a program that holds a slice until its input ends; returns once it holds the slice."""
        job = self.start("run", *options, "--", "sh", "-c", "echo holding; exec cat")
        job.says("holding")
        return job

    def refused(self, code: int, *words: str) -> str:
        """Run a command that must be refused; return its line of error and its hint."""
        done = self(*words, code=code)
        lines = done.stderr.splitlines()
        assert done.stdout == ""
        assert len(lines) == 2, done.stderr
        assert lines[0].startswith("error: "), done.stderr
        assert lines[1].startswith("hint: "), done.stderr
        assert len(lines[1]) > len("hint: ")
        return done.stderr

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self(*words, "-o", "json", code=code).stdout)

    def yaml(self, *words: str, code: int = 0) -> Any:
        return yaml.safe_load(self(*words, "-o", "yaml", code=code).stdout)

    def items(self, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.json(*words)["items"]
        return found

    def close(self) -> None:
        for job in self.jobs:
            job.kill()


@contextmanager
def own_home(place: Path, gpus: str = "1xT4") -> Iterator[Terminal]:
    """Yield a terminal with a home of its own and a simulated node, without a pool; stop a pool that the test leaves."""
    made = Terminal(place / "h", place)
    made("sim", "create", "lab", "--gpus", gpus)
    yield made
    made.close()
    made("down", "--force", code=None)


@contextmanager
def own_pool(place: Path, gpus: str) -> Iterator[Terminal]:
    """Yield a terminal with a home of its own and a running pool on a simulated node with these devices (``3xT4``)."""
    with own_home(place, gpus) as made:
        made("up", "--sim", "lab")
        yield made
