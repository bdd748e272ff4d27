"""Evidence for an invoice: the digest of its usage records, and its usage itemised by allocation.

Theory of operation. Usage records are read in the order of their numbers. Records of one allocation on one device with
the same amounts, each of which begins where the one before it ends, are one *item*. The ledger divides the amounts of
the invoice's lines among the items, so that items and lines add up to the same amount. The digest of a tenant covers
all of its records that overlap the month, up to the last number that existed when the month was rated; a later record
has a greater number. A record whose end is estimated has an uncertainty in seconds. The digest covers the uncertainty
only if it is not 0, so invoices of earlier versions, whose records had no uncertainty, can still be verified.

If an allocation is granted with the name of a released one, the released one is renamed to ``NAME~...``. The digest covers
the part of the name before the ``~``, so the renaming does not change it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from calabash.adapters.store.billing.seals import digest
from calabash.ledger import Invoice, ItemLine, Measure, Period
from calabash.ledger.calendar import SECOND_US
from calabash.ledger.rated import hours_of, per_hour, unit_of

ITEMS_AT_ONCE = 1000
NAME_CHARACTERS = 50
USAGE, ITEMS = "usage", "items"  # fields of the evidence in an invoice's document
_ALLOCATION = 11
_ID = 15
_UNCERTAIN = 16


class UsageEvidence(msgspec.Struct, kw_only=True, frozen=True):
    """Evidence of the usage records from which an invoice was computed.

    Args:
        records: number of the records.
        last_id: greatest record number that existed when the month was rated.
        sha256: digest of the records.
        rated_at: time of the rating, in seconds since the epoch.
        counted_to_s: time up to which usage was complete, in seconds since the epoch.
    """

    records: int = 0
    last_id: int = 0
    sha256: str = hashlib.sha256().hexdigest()
    rated_at: float = 0.0
    counted_to_s: float = 0.0


class ItemEvidence(msgspec.Struct, kw_only=True, frozen=True):
    """Count and digest of the items of an invoice."""

    count: int
    sha256: str


@dataclass(slots=True)
class _Digest:
    hash: Any = field(default_factory=hashlib.sha256)
    records: int = 0


class UsageDigests:
    """Digests of usage records, by tenant.

    Args:
        period_of: returns for a tenant the begin and end of the month in the tenant's time zone.
        last_id: records with a greater number are counted as late and left out of the digests; None: no record is late.
    """

    def __init__(self, period_of: Callable[[str], Period], *, last_id: int | None = None) -> None:
        self._period_of = period_of
        self._periods: dict[str, tuple[float, float]] = {}
        self._digests: dict[str, _Digest] = {}
        self._bound = last_id
        self.last_id = 0
        self.late = 0

    def add(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add a page of records to the digests of their tenants.

        Args:
            rows: records with the columns BILLED, MEASURED and EVIDENCE of ``calabash.adapters.store.usage.reader``.
        """
        taken: dict[str, list[str]] = {}
        periods, bound = self._periods, self._bound
        for row in rows:
            tenant, allocation = row[0], row[_ALLOCATION]
            begin_s, end_s = periods.get(tenant) or self._period(tenant)
            if row[6] <= begin_s or row[5] >= end_s:
                continue
            if bound is not None and row[_ID] > bound:
                self.late += 1
                continue
            row = row if row[_UNCERTAIN] else row[:_UNCERTAIN]  # noqa: PLW2901 - the row as it is digested
            kept = allocation.partition("~")[0][:NAME_CHARACTERS]
            taken.setdefault(tenant, []).append(f"{kept} {row!r}" if kept == allocation else _renamed(kept, row))
        self.last_id = max(self.last_id, max((row[_ID] for row in rows), default=0))
        for tenant, texts in taken.items():
            found = self._digests.setdefault(tenant, _Digest())
            found.hash.update("".join(texts).encode())
            found.records += len(texts)

    def evidence_of(self, tenant: str, *, rated_at: float = 0.0, counted_to_s: float = 0.0) -> UsageEvidence:
        """Return the evidence of one tenant for all added pages, with these times (see ``UsageEvidence``)."""
        found = self._digests.get(tenant, _Digest())
        return UsageEvidence(
            records=found.records,
            last_id=self.last_id,
            sha256=found.hash.hexdigest(),
            rated_at=rated_at,
            counted_to_s=counted_to_s,
        )

    def _period(self, tenant: str) -> tuple[float, float]:
        if tenant not in self._periods:
            period = self._period_of(tenant)
            self._periods[tenant] = period.from_us / SECOND_US, period.to_us / SECOND_US
        return self._periods[tenant]


def _renamed(kept: str, row: Sequence[Any]) -> str:
    """Return the digested text of a record; ``kept`` is the name that its allocation had before it was renamed."""
    return f"{kept} {(*row[:_ALLOCATION], kept, *row[_ALLOCATION + 1 :])!r}"


class Item(msgspec.Struct, kw_only=True):
    """Item of an invoice: the amounts that one allocation had of one device over an uninterrupted time."""

    allocation: str
    device: str
    user: str
    project: str
    model: str
    mode: str
    preemptible: bool
    share_percent: int
    memory_mib: int
    from_s: float
    to_s: float
    uncertain_s: float = 0.0


class Items:
    """Items of all tenants, numbered from 0. Records must be added in the order of their record numbers."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._open: dict[tuple[Any, ...], int] = {}

    def number(self, rows: Iterable[Sequence[Any]]) -> Iterator[int]:
        """Yield the item number of each usage record of one page of the database.

        A record belongs to the last item with the same allocation, device, amounts and account if it begins where that
        item ends. Otherwise it begins a new item.
        """
        items, opened = self._items, self._open
        for row in rows:
            (
                tenant,
                project,
                model,
                mode,
                preemptible,
                from_s,
                to_s,
                share,
                memory,
                _,
                _,
                allocation,
                device,
                user,
                _,
                _,
                uncertain_s,
            ) = row
            key = (allocation, device, share, memory, tenant, project, user, model, mode, preemptible)
            found = opened.get(key, -1)
            if found >= 0 and items[found].to_s == from_s:
                items[found].to_s = to_s
                items[found].uncertain_s += uncertain_s
            else:
                found = opened[key] = len(items)
                items.append(
                    Item(
                        allocation=allocation,
                        device=device,
                        user=user,
                        project=project,
                        model=model,
                        mode=mode,
                        preemptible=bool(preemptible),
                        share_percent=share,
                        memory_mib=memory,
                        from_s=from_s,
                        to_s=to_s,
                        uncertain_s=uncertain_s,
                    )
                )
            yield found

    def documents(self, invoice: Invoice, lines: Iterable[ItemLine]) -> list[dict[str, Any]]:
        """Return the stored form of an invoice's items, each with its hours and amount."""
        return [self._document(invoice, line) for line in lines]

    def _document(self, invoice: Invoice, line: ItemLine) -> dict[str, Any]:
        begin_s, end_s = invoice.period.from_us / SECOND_US, invoice.period.to_us / SECOND_US
        item = self._items[line.item] if line.item >= 0 else _NOTHING
        measure = line.measure if line.measure is not Measure.COMMITMENT else _measure_of(invoice, line)
        return {
            "allocation": item.allocation,
            "device": item.device,
            "user": item.user,
            "project": item.project,
            "model": item.model,
            "mode": item.mode,
            "preemptible": item.preemptible,
            "share_percent": item.share_percent,
            "memory_mib": item.memory_mib,
            "from_s": max(item.from_s, begin_s) if line.item >= 0 else begin_s,
            "to_s": min(item.to_s, end_s) if line.item >= 0 else end_s,
            "uncertain_s": item.uncertain_s if item.to_s <= end_s else 0.0,
            "measure": line.measure.value,
            "tariff": line.tariff,
            "price": line.price,
            "window": line.window,
            "hours": str(hours_of(line.quantity, per_hour(measure))),
            "unit": unit_of(measure),
            "amount": str(line.amount),
        }


_NOTHING = Item(
    allocation="",
    device="",
    user="",
    project="",
    model="",
    mode="",
    preemptible=False,
    share_percent=0,
    memory_mib=0,
    from_s=0.0,
    to_s=0.0,
)


def _measure_of(invoice: Invoice, commitment: ItemLine) -> Measure:
    """Return the measure (such as device hours) to which a commitment applies, found by the unit of its line."""
    unit = next(
        line.unit
        for line in invoice.lines
        if line.measure is Measure.COMMITMENT and (line.tariff, line.price) == (commitment.tariff, commitment.price)
    )
    return next(measure for measure in Measure if measure is not Measure.COMMITMENT and unit_of(measure) == unit)


def in_parts(items: Sequence[Mapping[str, Any]]) -> list[Sequence[Mapping[str, Any]]]:
    """Split items into the blocks of ITEMS_AT_ONCE items in which they are stored."""
    return [items[begin : begin + ITEMS_AT_ONCE] for begin in range(0, len(items), ITEMS_AT_ONCE)]


def item_evidence(items: Sequence[Mapping[str, Any]]) -> ItemEvidence:
    """Return count and digest of items."""
    return ItemEvidence(count=len(items), sha256=digest(items))
