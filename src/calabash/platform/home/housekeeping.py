"""Background thread that trims the journal and the log, and calls the pool's periodic check."""

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
CHECK_S = 1.0
PAUSE_S = 0.1  # pause between two batches, so that allocations come first
SETTLED_S = 5.0

log = structlog.get_logger(__name__)


class Housekeeper:
    """Thread that trims a pool's journal and log to their limits.

    Args:
        kept: limits of the journal.
        check: called every CHECK_S seconds.
        preload: name of a module to import SETTLED_S seconds after the start, so that no request waits for the import.
    """

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        kept: Retention,
        log_file: Path,
        check: Callable[[], object] = lambda: None,
        preload: str = "",
    ) -> None:
        self._check = check
        self._preload = preload
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
        """Call the check every CHECK_S seconds for ``period_s`` seconds; return False early if the thread is to end."""
        end_s = time.monotonic() + period_s
        while time.monotonic() < end_s:
            if self._stop.wait(CHECK_S):
                return False
            try:
                self._check()
            except Exception:
                log.exception("the periodic check failed and will be repeated")
        return True

    def _run(self) -> None:
        # The module is needed only after some hundred requests; importing it must delay neither the start nor a request.
        if self._stop.wait(SETTLED_S):
            return
        if self._preload:
            importlib.import_module(self._preload)
        while self._waited(PERIOD_S):
            keep_small(self._log_file)
            try:
                while self._store.trim(self._kept, now_s=self._clock.now_s()) and not self._stop.wait(PAUSE_S):
                    pass
            except CalabashError as error:
                log.warning("the journal cannot be trimmed now", error=error.message)
            except Exception:
                log.exception("housekeeping failed and will be repeated")
