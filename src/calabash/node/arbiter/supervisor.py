"""Supervises the arbiter, a process of its own: started with the pool, started again when it dies, gone with it."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

import structlog

from calabash.adapters.host.children import start_module

BACKOFF_FIRST_S = 0.02
BACKOFF_MAX_S = 0.5  # shares are held by the shims alone meanwhile, so even an arbiter that always dies is tried often
STEADY_S = 10.0

log = structlog.get_logger(__name__)


class ArbiterProcess:
    """At most one arbiter. A thread of its own waits for the process, so its death is noticed at once."""

    def __init__(self, home: Path) -> None:
        # The arbiter ends with its parent and is told the parent's number: the parent may be dead before the arbiter looks.
        self._words = ("--home", str(home.absolute()), "--parent", str(os.getpid()))
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="arbiter", daemon=True)

    @property
    def pid(self) -> int:
        """0 when it does not run."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End it; the shims then hold to their rate by themselves."""
        self._stopping.set()
        with self._lock:
            process = self._process
        if process is not None:
            process.terminate()
            try:
                process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        backoff_s = BACKOFF_FIRST_S
        while not self._stopping.is_set():
            begun_s = time.monotonic()
            process = self._begin()
            code = process.wait() if process is not None else None
            if self._stopping.is_set():
                return
            log.warning("the arbiter ended and is started again", code=code)
            steady = time.monotonic() - begun_s > STEADY_S
            backoff_s = BACKOFF_FIRST_S if steady else backoff_s
            self._stopping.wait(backoff_s)
            backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)

    def _begin(self) -> subprocess.Popen[bytes] | None:
        """Start one; None when the machine starts no process now, or the arbiter is to stop."""
        with self._lock:
            if self._stopping.is_set():
                return None
            try:
                # Its priority stays raised: it gives out time windows of milliseconds, and needs little time itself.
                self._process = start_module("calabash.node.arbiter.main", *self._words, urgent=True, new_session=True)
            except OSError as error:
                log.error("the arbiter cannot be started", error=str(error))
                return None
            return self._process
