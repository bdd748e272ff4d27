"""Scheduling passes in a separate thread, in which one pass serves many calls that request one.

Each withdrawn request and each ended program may free capacity for other requests, so a pass is needed. If a thousand
of them come at once, a thousand passes would be slow, and each caller would wait for its own pass.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

import structlog

PAUSE_S = 0.01

log = structlog.get_logger(__name__)


class Passes:
    """Thread that calls ``one_pass`` when a pass is due, and pauses for ``pause_s`` after each."""

    def __init__(self, one_pass: Callable[[], None], *, pause_s: float = PAUSE_S) -> None:
        self._one_pass = one_pass
        self._pause_s = pause_s
        self._changed = threading.Condition()
        self._due_at_s = math.inf
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def request(self) -> None:
        """Request that ``one_pass`` is called now. Returns at once."""
        self.request_in(0.0)

    def request_in(self, wait_s: float) -> None:
        """Request a pass after ``wait_s``. Returns at once. A pass that is made earlier counts as this one."""
        with self._changed:
            due_at_s = time.monotonic() + wait_s
            if due_at_s < self._due_at_s:
                self._due_at_s = due_at_s
                self._changed.notify()
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, name="binder", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Make no more passes. Returns without waiting for one in progress."""
        self._stopped.set()
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        while self._wait_until_due():
            try:
                self._one_pass()
            except Exception:
                log.exception("a pass of the scheduler failed; the next one goes on")
            self._stopped.wait(self._pause_s)

    def _wait_until_due(self) -> bool:
        """Wait until a pass is due. Returns False after ``stop``."""
        with self._changed:
            while not self._stopped.is_set():
                wait_s = self._due_at_s - time.monotonic()
                if wait_s <= 0:
                    self._due_at_s = math.inf
                    return True
                self._changed.wait(min(wait_s, threading.TIMEOUT_MAX))
            return False
