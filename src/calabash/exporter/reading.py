"""Read the state of the pool for one scrape, with a bounded number of requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from calabash.adapters.pool.client import ApiClient
from calabash.api import endpoints, replies, tenancy
from calabash.api.counters import NO_COUNTERS, PoolCounters
from calabash.api.networks import NetworkObjectView
from calabash.model.errors import CalabashError, Reason

EVENT_PAGES_MAX = 20  # in one scrape; the next continues
_EVENTS_AT_ONCE = 1000
_WITHOUT_COUNTERS = {Reason.NOT_FOUND, Reason.UNSUPPORTED, Reason.NOT_PERMITTED}
PENDING = "pending"  # state of a waiting request


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReading:
    """State of a pool at one moment.

    ``events`` has the number of events since the exporter started, by their kind and reason.
    """

    status: replies.Status
    devices: list[replies.DeviceView]
    allocations: list[replies.AllocationView]
    queues: list[replies.QueueView]
    quota: list[tenancy.QuotaView] = field(default_factory=list)
    events: Mapping[tuple[str, str], int] = field(default_factory=dict)
    vpcs: list[NetworkObjectView] = field(default_factory=list)
    counters: PoolCounters = NO_COUNTERS


class Reader:
    """Reads the state of a pool; between two scrapes it keeps only the number of events."""

    def __init__(self, pool: ApiClient) -> None:
        self._pool = pool
        self._events: Counter[tuple[str, str]] = Counter()
        self._last: int | None = None

    def read(self) -> PoolReading:
        """Read the state of the pool.

        Raises:
            CalabashError: if the pool does not answer.
            msgspec.ValidationError: if a reply has an unknown form.
        """
        status = msgspec.convert(self._pool.send(endpoints.SHOW_STATUS), replies.Status)
        devices = msgspec.convert(self._pool.send(endpoints.LIST_DEVICES), replies.DeviceList).items
        allocations = msgspec.convert(self._pool.items(endpoints.LIST_ALLOCATIONS), list[replies.AllocationView])
        queues = msgspec.convert(self._pool.send(endpoints.LIST_QUEUES), replies.QueueList).items
        quota = msgspec.convert(self._pool.send(endpoints.LIST_QUOTA), tenancy.QuotaList).items
        self._count_events()
        return PoolReading(
            status=status,
            devices=devices,
            allocations=allocations,
            queues=queues,
            quota=quota,
            events=dict(self._events),
            vpcs=msgspec.convert(
                self._pool.items(endpoints.LIST_NETWORK_OBJECTS, query={"kind": "vpc"}), list[NetworkObjectView]
            ),
            counters=self._counters(),
        )

    def _counters(self) -> PoolCounters:
        """Return the pool's counters; ``NO_COUNTERS`` for a cluster, an older pool, or a user who may not see them."""
        try:
            return msgspec.convert(self._pool.send(endpoints.SHOW_COUNTERS), PoolCounters)
        except CalabashError as error:
            if error.reason not in _WITHOUT_COUNTERS:
                raise
            return NO_COUNTERS

    def _count_events(self) -> None:
        """Count the events since the last scrape.

        At the first scrape, the events that the pool has recorded so far get the count 0, so that later increases are
        seen.
        """
        after = self._last or 0
        for _ in range(EVENT_PAGES_MAX):
            query = {"after": after, "limit": _EVENTS_AT_ONCE}
            found = msgspec.convert(self._pool.send(endpoints.LIST_EVENTS, query=query), replies.EventList).items
            if self._last is None:
                self._events.update({(event.kind, event.reason): 0 for event in found})
            else:
                self._events.update((event.kind, event.reason) for event in found)
            if not found:
                break
            after = found[-1].id
            if len(found) < _EVENTS_AT_ONCE:
                break
        self._last = after
