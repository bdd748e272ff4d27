"""Past use of the queues in the database, so that a restarted pool counts on from it.

What is stored is what the scheduler has counted, not what follows from usage records: the part of the use that counts depends
on the guarantees at that time, which records do not name. It is stored in each 64th part of a half-life, at least every
``SAVE_EVERY_S``, and at the end of the pool. After a kill, allocations that are still held are counted from the last time it
was stored on; the use of allocations that ended in between is lost for that time.
"""

from __future__ import annotations

import structlog

from calabash.adapters.clock import Clock
from calabash.adapters.store import Store
from calabash.binder.local.binder import Binder
from calabash.model.errors import CalabashError

SAVE_EVERY_S = 30.0
SAVE_EVERY_MIN_S = 1.0

log = structlog.get_logger(__name__)


class PastUseKeeper:
    """Stores the past use of the queues of a binder, and restores it when it is created. Not safe for threads.

    Args:
        half_life_s: half-life of past use; 0: nothing is stored or restored.
    """

    def __init__(self, binder: Binder, store: Store, clock: Clock, *, half_life_s: float) -> None:
        self._binder = binder
        self._stored = store.administration
        self._clock = clock
        self._half_life_s = half_life_s
        self._every_s = min(SAVE_EVERY_S, max(SAVE_EVERY_MIN_S, half_life_s / 64))
        self._saved: dict[str, float] = {}
        self._saved_at_s = clock.monotonic_ns() / 1e9
        if half_life_s > 0:
            past, at_s = self._stored.past_use()
            if past:
                binder.restore_past_use(past, max(0.0, clock.now_s() - at_s))

    def save_if_due(self) -> None:
        """Store the past use if the last time is long enough ago."""
        if self._clock.monotonic_ns() / 1e9 - self._saved_at_s >= self._every_s:
            self.save()

    def save(self) -> None:
        """Store the past use, unless it is that of the last time. An error is logged: the next time comes."""
        if self._half_life_s <= 0:
            return
        self._saved_at_s = self._clock.monotonic_ns() / 1e9
        past = {name: value for name, value in self._binder.past_use().items() if value > 0}
        if past == self._saved:
            return
        try:
            self._stored.put_past_use(past, self._clock.now_s())
        except CalabashError as error:
            log.warning("the past use of the queues was not stored", error=error.message)
        else:
            self._saved = past
