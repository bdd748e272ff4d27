"""Supervises the arbiter, a process of its own: started with the pool, started again when it dies, gone with it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import structlog

from calabash.seams.clock import Clock
from calabash.seams.host.children import start_module

_BACKOFF_FIRST_NS = 50_000_000
_BACKOFF_MAX_NS = 5_000_000_000
_STEADY_NS = 10_000_000_000

log = structlog.get_logger(__name__)


class ArbiterProcess:
    """At most one arbiter. ``keep`` is called often and never waits."""

    def __init__(self, home: Path, clock: Clock) -> None:
        # The arbiter ends with its parent and is told the parent's number: the parent may be dead before the arbiter looks.
        self._words = ("--home", str(home.absolute()), "--parent", str(os.getpid()))
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
            self._process = start_module("calabash.agent.arbiter", *self._words)

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
