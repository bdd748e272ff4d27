"""Whose allocations are, also of those that have ended: asked of the journal once, for it never changes."""

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
    """On whose account, and by whom, an allocation was asked for."""

    tenant: str
    uid: int
    user: str


class AllocationOwners:
    """The owners of allocations, those looked up last. Safe for threads.

    A page of events names a thousand allocations, and is asked for again and again.
    """

    def __init__(self, recorded: Callable[[AllocationId], AllocationRecord | None], *, kept: int = KEPT) -> None:
        self._recorded = recorded
        self._kept = kept
        self._lock = threading.Lock()
        self._known: OrderedDict[AllocationId, AllocationOwner] = OrderedDict()

    def of(self, allocation: AllocationId) -> AllocationOwner | None:
        """None for what the journal does not know, or not yet. Raises CalabashError as the journal does."""
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
