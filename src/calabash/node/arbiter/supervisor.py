"""Supervisor of the arbiter process: starts it with the pool, restarts it when it dies, ends it with the pool."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

import structlog

from calabash.adapters.host.children import start_module

BACKOFF_FIRST_S = 0.02
BACKOFF_MAX_S = 0.5  # short, because the shims enforce the shares alone until the arbiter runs again
STEADY_S = 10.0

log = structlog.get_logger(__name__)


class ArbiterProcess:
    """The arbiter process of a pool. A thread waits for the process, so its death is noticed at once."""

    def __init__(self, home: Path) -> None:
        # The arbiter exits when its parent does. It gets the parent's PID, because the parent may end before it can read it.
        self._demand_words = ("--home", str(home.absolute()), "--parent", str(os.getpid()))
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="arbiter", daemon=True)

    @property
    def pid(self) -> int:
        """PID of the arbiter; 0 if it does not run."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the arbiter. The shims then limit themselves to their rates."""
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
            log.warning("the arbiter exited and is restarted", code=code)
            steady = time.monotonic() - begun_s > STEADY_S
            backoff_s = BACKOFF_FIRST_S if steady else backoff_s
            self._stopping.wait(backoff_s)
            backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)

    def _begin(self) -> subprocess.Popen[bytes] | None:
        """Start the process. Return None if the machine cannot start a process now, or the supervisor is stopping."""
        with self._lock:
            if self._stopping.is_set():
                return None
            try:
                # The priority stays raised: the arbiter assigns time windows of milliseconds, and needs little CPU time.
                self._process = start_module(
                    "calabash.node.arbiter.main", *self._demand_words, urgent=True, new_session=True
                )
            except OSError as error:
                log.error("the arbiter cannot be started", error=str(error))
                return None
            return self._process
