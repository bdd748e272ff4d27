"""Events of a node: they are logged, and queued until the journal accepts them. Journal failures are logged too."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

import structlog

from calabash.adapters.clock import Clock
from calabash.adapters.store import Store
from calabash.model.errors import CalabashError
from calabash.model.messages import Text, in_full

EVENTS_WAITING_MAX = 1000

log = structlog.get_logger(__name__)


class Events:
    """Event queue of one node. Methods may be called from any thread."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._waiting: deque[dict[str, Any]] = deque(maxlen=EVENTS_WAITING_MAX)
        self._failure = ""
        self._subscribers: list[Callable[[], None]] = []

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Register a callback that is called, without any lock, when capacity may have been freed."""
        self._subscribers.append(changed)

    def changed(self) -> None:
        """Call the subscribers because capacity may have been freed. Must not be called while holding a lock."""
        for changed in self._subscribers:
            changed()

    def emit(self, kind: str, *, reason: str = "", allocation: str = "", device: str = "", message: Text = "") -> None:
        """Log an event and queue it for the journal. The oldest of more than EVENTS_WAITING_MAX queued events is dropped."""
        fields = {"reason": reason, "allocation": allocation, "device": device}
        log.info(kind, **{k: v for k, v in {**fields, "message": in_full(message)}.items() if v})
        self._waiting.append({"at": self._clock.now_s(), "kind": kind, **fields, "message": message})

    def flush(self) -> None:
        """Write queued events to the store; those that it does not accept stay queued."""
        with contextlib.suppress(CalabashError):
            while self._waiting:
                # One transaction: one for each event would delay grants, which write to the same journal.
                batch = list(self._waiting)
                self._store.add_events(batch)
                for event in batch:
                    if self._waiting and self._waiting[0] is event:  # else the full queue has dropped it
                        self._waiting.popleft()

    def complain(self, error: CalabashError) -> None:
        """Log that the journal cannot be written. The same error is logged once until ``settled`` is called."""
        if error.message != self._failure:
            self._failure = error.message
            log.error(
                "cannot write the journal of allocations; retrying", error=error.message, reason=str(error.reason)
            )

    def settled(self) -> None:
        """Note that the journal can be written again, so that the next failure is logged."""
        self._failure = ""
