"""A thread that keeps the pool's own files small: the past in the journal, the log. It also ends what nobody keeps."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from calabash.adapters.clock import Clock
from calabash.adapters.store import Retention, Store
from calabash.model.errors import CalabashError
from calabash.platform.home.logs import keep_small

PERIOD_S = 30.0
LOOK_S = 1.0
PAUSE_S = 0.1  # between two batches, so that grants come first
SETTLED_S = 5.0

log = structlog.get_logger(__name__)


class Housekeeper:
    """Trims what is beyond the bounds, a batch at a time. ``look`` is called every second or so; ``learned`` is a module that
    is imported once nobody waits for the start any more."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        kept: Retention,
        log_file: Path,
        look: Callable[[], object] = lambda: None,
        learned: str = "",
    ) -> None:
        self._look = look
        self._learned = learned
        self._store = store
        self._clock = clock
        self._kept = kept
        self._log_file = log_file
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _waited(self, period_s: float) -> bool:
        """Whether it goes on after that time."""
        end_s = time.monotonic() + period_s
        while time.monotonic() < end_s:
            if self._stop.wait(LOOK_S):
                return False
            try:
                self._look()
            except Exception:
                log.exception("a look at what is kept failed once and goes on")
        return True

    def _run(self) -> None:
        # What is needed only after some hundred requests: importing it must not fall into a request, and not into the start.
        if self._stop.wait(SETTLED_S):
            return
        if self._learned:
            importlib.import_module(self._learned)
        while self._waited(PERIOD_S):
            keep_small(self._log_file)
            try:
                while self._store.trim(self._kept, now_s=self._clock.now_s()) and not self._stop.wait(PAUSE_S):
                    pass
            except CalabashError as error:
                log.warning("the journal cannot be trimmed now", error=error.message)
            except Exception:
                log.exception("housekeeping failed once and goes on")
