"""Usage of held allocations since their last usage record.

The watch thread writes a usage record of each slice once a minute. ``records`` returns the usage since then and writes
nothing, so frequent queries of users create no rows. ``write`` writes that usage to the store before the store is read
to compute prices (rating).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from calabash.adapters.clock import Clock
from calabash.adapters.store import Store
from calabash.model.allocation import AllocationRecord, UsageRecord
from calabash.node.metering.usage_totals import GpuTime, Key
from calabash.node.metering.usage_tracker import UsageTracker

KEPT_NS = 1_000_000_000


class OpenUsage:
    """Open usage of one node. Methods may be called from any thread.

    Allocations are measured and written at most once in ``KEPT_NS``.

    Args:
        held: returns the held allocations.
    """

    def __init__(
        self, held: Callable[[], Sequence[AllocationRecord]], usage_tracker: UsageTracker, store: Store, clock: Clock
    ) -> None:
        self._held, self._ledgers, self._store, self._clock = held, usage_tracker, store, clock
        self._lock = threading.Lock()
        self._measured_ns = self._written_ns = -KEPT_NS
        self._measured: tuple[Sequence[UsageRecord], float] = ((), 0.0)
        self._written_until_s = 0.0

    def records(self) -> tuple[Sequence[UsageRecord], float]:
        """Return the records of all open intervals as if they ended now, and the calendar time of that end.

        The store may have some of the records by the time they are used.
        """
        with self._lock:
            now_ns = self._clock.monotonic_ns()
            if now_ns - self._measured_ns >= KEPT_NS:
                until_s = self._clock.now_s()
                self._measured = self._ledgers.preview(self._held()), until_s
                self._measured_ns = now_ns
            return self._measured

    def totals(self) -> Mapping[Key, GpuTime]:
        """Return the GPU time of tenants and projects since the start of the pool. Reads nothing from the store."""
        return self._ledgers.totals(self._held())

    def write(self) -> tuple[float, Mapping[str, float]]:
        """Write the records of all open intervals.

        Returns the calendar time up to which all usage is in the store, and a mapping of tenants for which that time is
        earlier, which is always empty on a single node.

        Raises:
            CalabashError: STORE_UNAVAILABLE, DISK_FULL.
        """
        with self._lock:
            now_ns = self._clock.monotonic_ns()
            if now_ns - self._written_ns >= KEPT_NS:
                until_s = self._clock.now_s()
                self._ledgers.write(self._held(), self._store)
                self._written_ns, self._written_until_s = now_ns, until_s
            return self._written_until_s, {}
