"""Supervises the arbiter, a process of its own: started with the pool, started again when it dies, gone with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import structlog

from calabash.seams.clock import Clock

_BACKOFF_FIRST_NS = 50_000_000
_BACKOFF_MAX_NS = 5_000_000_000
_STEADY_NS = 10_000_000_000

log = structlog.get_logger(__name__)


class ArbiterProcess:
    """At most one arbiter. ``keep`` is called often and never waits."""

    def __init__(self, home: Path, clock: Clock, *, command: list[str] | None = None) -> None:
        # It ends with its parent, whom it must know by number: we may be dead before it can look.
        default = [sys.executable, "-m", "calabash.agent.arbiter", "--home", str(home), "--parent", str(os.getpid())]
        self._command = command or default
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._started_ns = 0
        self._not_before_ns = 0
        self._backoff_ns = _BACKOFF_FIRST_NS

    @property
    def pid(self) -> int:
        """0 when it does not run."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else 0

    def keep(self) -> None:
        """Start it when it does not run; after quick deaths ever less eagerly."""
        now_ns = self._clock.monotonic_ns()
        process = self._process
        if process is not None:
            code = process.poll()
            if code is None:
                return
            log.warning("the arbiter ended and is started again", code=code)
            if now_ns - self._started_ns > _STEADY_NS:
                self._backoff_ns = _BACKOFF_FIRST_NS
            self._not_before_ns = now_ns + self._backoff_ns
            self._backoff_ns = min(2 * self._backoff_ns, _BACKOFF_MAX_NS)
            self._process = None
        if now_ns >= self._not_before_ns:
            self._started_ns = now_ns
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL)

    def stop(self) -> None:
        """End it; the shims then hold to their rate by themselves."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
