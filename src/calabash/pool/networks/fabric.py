"""Hold back cards that may still be in the fabric partition of another tenant.

A fabric partition is the group of network ports that can exchange RDMA traffic. Each tenant has its own partition.

Theory of operation. The fabric controller, another process, changes the partitions. It reads the present uses of cards as a
snapshot with a number, a *moment*, and reports afterwards the partitions that it found each card in. After a card was granted
to a tenant, the card may be in the tenant's partition. This ends only with a report *for a moment after the release* that no
longer shows the card there. A report for an earlier moment proves nothing: the card may have joined the partition later.
Reports for moments of an earlier process of the pool are refused, so all cards are held back until the first report.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from calabash.model.allocation import AllocationRecord
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.fabric import FabricCondition, FabricUse
from calabash.model.messages import Message, TenantName, names
from calabash.model.request import DEFAULT_TENANT
from calabash.net.fabric_partitions import may_grant


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricMoment:
    """Snapshot of the tenants that use cards, which the fabric controller reads and names in its next report.

    Args:
        pool: random ID of the pool's process, so that reports for snapshots of an earlier process are recognised.
        number: number of the snapshot, which grows with each change of the uses.
        uses: pairs of a card and a tenant that has it allocated.
    """

    pool: str
    number: int
    uses: tuple[FabricUse, ...]


class FabricHolds:
    """Cards that are held back because they may still be in another tenant's partition. Safe for threads.

    Args:
        records: returns the present allocations.
        hold: True to hold cards back, False to store reports only.
    """

    def __init__(self, records: Callable[[], Sequence[AllocationRecord]], *, hold: bool = False) -> None:
        self._records, self.hold = records, hold
        self._lock = threading.Lock()
        self._pool = secrets.token_hex(8)
        self._number = 1
        self._uses: frozenset[FabricUse] = frozenset()
        self._left: dict[FabricUse, int] = {}  # the first moment after its release
        self._promised: Counter[FabricUse] = Counter()
        self._told: dict[DeviceUuid, set[str] | None] | None = None
        self._conditions: tuple[FabricCondition, ...] = ()
        self.told_at = 0.0

    def moment(self) -> FabricMoment:
        """Return a snapshot of the tenants that use cards now."""
        with self._lock:
            self._update_uses()
            uses = self._uses | set(self._promised)
            return FabricMoment(pool=self._pool, number=self._number, uses=tuple(sorted(uses)))

    def conditions(self) -> tuple[FabricCondition, ...]:
        """Return the conditions of the last report, one for each card and fabric."""
        return self._conditions

    def report(self, pool: str, number: int, conditions: Iterable[FabricCondition], *, now_s: float) -> None:
        """Store a report of the fabric controller: the partitions in which it found the cards.

        Raises CONFLICT if the report names a snapshot of another process of the pool.

        Args:
            pool: ``pool`` of the snapshot (``FabricMoment``) that the controller read before it looked at the cards.
            number: number of this snapshot.
            conditions: partitions of each card on each of its fabrics.
            now_s: time of the report in seconds.
        """
        found = tuple(conditions)
        with self._lock:
            self._update_uses()
            if pool != self._pool or not 0 < number <= self._number:
                raise CalabashError(
                    "that moment is not of this pool", reason=Reason.CONFLICT, hint="read the uses of cards again"
                )
            self._told = _standing(found)
            self._conditions, self.told_at = found, now_s
            self._left = {use: gone for use, gone in self._left.items() if gone > number}

    @contextmanager
    def granting(self, record: AllocationRecord) -> Iterator[None]:
        """Count the cards of a grant as used while the context lasts, before the allocation is recorded.

        Raises FABRIC_HELD if a card may be in the partition of another tenant.
        """
        wanted = _uses([record])
        with self._lock:
            self._update_uses()
            if self.hold:
                for use in wanted:
                    self._require(use)
            self._promised.update(wanted)
        try:
            yield
        finally:
            with self._lock:
                self._promised -= Counter(wanted)
                self._update_uses()
                for use in wanted - self._uses:
                    self._left[use] = self._next()

    def _require(self, use: FabricUse) -> None:
        if self._told is None:
            raise CalabashError(
                f"{use.device} is held until its fabrics are known: their controller has told nothing yet",
                reason=Reason.FABRIC_HELD,
                hint="start it: calabash serve fabric",
            )
        told = self._told.get(use.device, set())
        others = {*self._uses, *self._left, *self._promised}
        standing = None if told is None else told | {u.tenant for u in others if u.device == use.device}
        if use.device in self._told and not may_grant(use.tenant, standing):
            found = "not known" if standing is None else names(TenantName, sorted(standing - {use.tenant}))
            raise CalabashError(
                Message(
                    "{device} may still be in a partition of another tenant's on its fabric: {tenants}",
                    device=use.device,
                    tenants=found,
                ),
                reason=Reason.FABRIC_HELD,
                hint="it is granted as soon as it is seen to have left; see `calabash net fabric list`",
            )

    def _update_uses(self) -> None:
        """Update the uses of cards from the present allocations."""
        uses = _uses(self._records())
        if uses == self._uses:
            return
        gone = self._uses - uses
        self._uses = uses
        number = self._next()
        for use in gone - set(self._promised):
            self._left[use] = number
        for use in uses:
            self._left.pop(use, None)

    def _next(self) -> int:
        self._number += 1
        return self._number


def _uses(records: Iterable[AllocationRecord]) -> frozenset[FabricUse]:
    return frozenset(
        FabricUse(device=part.device, tenant=record.request.tenant or DEFAULT_TENANT)
        for record in records
        for part in record.placement.slices
    )


def _standing(conditions: Iterable[FabricCondition]) -> dict[DeviceUuid, set[str] | None]:
    """Return for each card the tenants in whose partitions it was found.

    A card can be on several fabrics (planes), each with a condition of its own. The tenants of all planes are returned
    together. The value is None if the partitions of the card on one of the planes are unknown.
    """
    found: dict[DeviceUuid, set[str] | None] = {}
    for one in conditions:
        known: Mapping[DeviceUuid, set[str] | None] = found
        before = known.get(one.device, set())
        found[one.device] = None if before is None or one.standing is None else before | set(one.standing)
    return found
