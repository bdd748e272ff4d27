"""Passes of the scheduler that nobody waits for: many reasons for one are answered by one, in a thread of its own.

A request that is withdrawn, a program that ends: each may have made room for others. A thousand at once would be a
thousand passes, and whoever reported one of them would wait for its pass.
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
    """Makes ``one_pass`` when it becomes due, and then not again for ``pause_s``."""

    def __init__(self, one_pass: Callable[[], None], *, pause_s: float = PAUSE_S) -> None:
        self._one_pass = one_pass
        self._pause_s = pause_s
        self._changed = threading.Condition()
        self._due_at_s = math.inf
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def due(self) -> None:
        """There may be something to decide; returns at once."""
        self.due_in(0.0)

    def due_in(self, wait_s: float) -> None:
        """There may be something to decide in so many seconds; returns at once. A pass that is made sooner replaces it."""
        with self._changed:
            due_at_s = time.monotonic() + wait_s
            if due_at_s < self._due_at_s:
                self._due_at_s = due_at_s
                self._changed.notify()
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, name="binder", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Make none any more; returns without waiting for one that is being made."""
        self._stopped.set()
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        while self._waited():
            try:
                self._one_pass()
            except Exception:
                log.exception("a pass of the scheduler failed; the next one goes on")
            self._stopped.wait(self._pause_s)

    def _waited(self) -> bool:
        """Wait until a pass is due. Returns False if none is to be made any more."""
        with self._changed:
            while not self._stopped.is_set():
                wait_s = self._due_at_s - time.monotonic()
                if wait_s <= 0:
                    self._due_at_s = math.inf
                    return True
                self._changed.wait(min(wait_s, threading.TIMEOUT_MAX))
            return False
