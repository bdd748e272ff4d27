"""What people are told: events, kept until the journal takes them, and complaints that are not repeated."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

import structlog

from calabash.adapters.clock import Clock
from calabash.adapters.store import Store
from calabash.model.errors import CalabashError

EVENTS_WAITING_MAX = 1000

log = structlog.get_logger(__name__)


class Events:
    """The events of one node; from any thread."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._waiting: deque[dict[str, Any]] = deque(maxlen=EVENTS_WAITING_MAX)
        self._failure = ""
        self._subscribers: list[Callable[[], None]] = []

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Have it called, without any lock, whenever room may have appeared."""
        self._subscribers.append(changed)

    def changed(self) -> None:
        """Room may have appeared. Not to be called under a lock."""
        for changed in self._subscribers:
            changed()

    def tell(self, kind: str, *, reason: str = "", allocation: str = "", device: str = "", message: str = "") -> None:
        """Log it and write it into the journal as soon as that is possible; the oldest are lost when too many wait."""
        fields = {"kind": kind, "reason": reason, "allocation": allocation, "device": device, "message": message}
        log.info(kind, **{k: v for k, v in fields.items() if v and k != "kind"})
        self._waiting.append({"at": self._clock.now_s(), **fields})

    def flush(self) -> None:
        """Write what waits, as far as the store takes it."""
        with contextlib.suppress(CalabashError):
            while self._waiting:
                # Many at once: as many transactions as events would keep grants from the journal meanwhile.
                batch = list(self._waiting)
                self._store.add_events(batch)
                for event in batch:
                    if self._waiting and self._waiting[0] is event:  # else it was lost in the meantime
                        self._waiting.popleft()

    def complain(self, error: CalabashError) -> None:
        """Say that the journal cannot be kept now: once, not ten times a second."""
        if error.message != self._failure:
            self._failure = error.message
            log.error("cannot settle the allocations; trying on", error=error.message, reason=str(error.reason))

    def settled(self) -> None:
        """All is well again; the next complaint is a new one."""
        self._failure = ""
