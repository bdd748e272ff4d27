"""Passes of the scheduler that nobody waits for: many reasons for one are answered by one, in a thread of its own.

A request that is withdrawn, a program that ends: each may have made room for others. A thousand at once would be a
thousand passes, and whoever reported one of them would wait for its pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

PAUSE_S = 0.01

log = structlog.get_logger(__name__)


class Passes:
    """Makes ``one_pass`` soon after it became due, and then not again for ``pause_s``."""

    def __init__(self, one_pass: Callable[[], None], *, pause_s: float = PAUSE_S) -> None:
        self._one_pass = one_pass
        self._pause_s = pause_s
        self._due = threading.Event()
        self._stopped = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def due(self) -> None:
        """There may be something to decide; returns at once."""
        self._due.set()
        with self._starting:
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, name="binder", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Make none any more; returns without waiting for one that is being made."""
        self._stopped.set()
        self._due.set()

    def _run(self) -> None:
        while True:
            self._due.wait()
            if self._stopped.is_set():
                return
            self._due.clear()
            try:
                self._one_pass()
            except Exception:
                log.exception("a pass of the scheduler failed; the next one goes on")
            self._stopped.wait(self._pause_s)
