"""Cache of the owners of allocations, which are read from the journal and never change."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from calabash.model.allocation import AllocationRecord
from calabash.model.request import AllocationId

KEPT = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationOwner:
    """Tenant and user that requested an allocation."""

    tenant: str
    uid: int
    user: str


class AllocationOwners:
    """Least-recently-used cache of the owners of allocations. Safe for threads.

    Args:
        recorded: reads an allocation from the journal.
        kept: greatest number of cached owners.
    """

    def __init__(self, recorded: Callable[[AllocationId], AllocationRecord | None], *, kept: int = KEPT) -> None:
        self._recorded = recorded
        self._kept = kept
        self._lock = threading.Lock()
        self._known: OrderedDict[AllocationId, AllocationOwner] = OrderedDict()

    def owner_of(self, allocation: AllocationId) -> AllocationOwner | None:
        """Return the owner of an allocation; None if the journal does not have it (yet). Raises CalabashError."""
        with self._lock:
            known = self._known.get(allocation)
            if known is not None:
                self._known.move_to_end(allocation)
                return known
        record = self._recorded(allocation)
        if record is None:
            return None
        found = AllocationOwner(tenant=record.request.tenant, uid=record.uid, user=record.user)
        with self._lock:
            self._known[allocation] = found
            while len(self._known) > self._kept:
                self._known.popitem(last=False)
        return found
