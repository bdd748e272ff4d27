"""Program that rates a month of usage in its own process: ``python -I -m calabash.platform.billing.rating_process``."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from calabash.adapters.store import Store
from calabash.adapters.store.billing.documents import InvoiceRecord
from calabash.ledger import (
    GuaranteeChange,
    Invoice,
    ItemLine,
    Period,
    Tariff,
    Usage,
    invoice,
    month_period,
    rate,
    rate_itemised,
)
from calabash.ledger.calendar import HOUR_US, SECOND_US, zone_of
from calabash.ledger.intervals import Column, LineKey
from calabash.ledger.tariffs import tariff_in_force
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import TenantName, mentions
from calabash.platform.billing.documents import draft_number, record_of, settings_of, tariff_of
from calabash.platform.billing.evidence import ITEMS, USAGE, Items, UsageDigests, in_parts, item_evidence
from calabash.platform.billing.process import TaskAnswer, TaskOrder, serve_task

ZONE_US = 15 * HOUR_US  # greatest offset of a time zone from UTC
_Key = tuple[str, str, str, str, bool]  # tenant, project, model, mode, preemptible


class RatingOrder(TaskOrder, kw_only=True, frozen=True):
    """Order to rate a month.

    Args:
        month: the month, ``YYYY-MM``.
        tenant: tenant to rate; "" for all.
        keep: True to store the drafts in the database, False to return the amounts only.
        counted_to_s: time up to which the database has all usage, in seconds since the epoch; 0: the time of the
            rating.
        behind: the same time by tenant, for the tenants for which it is earlier.
    """

    month: str
    tenant: str = ""
    keep: bool = True
    counted_to_s: float = 0.0
    behind: dict[str, float] = msgspec.field(default_factory=dict)


class RatingFailure(msgspec.Struct, kw_only=True, frozen=True):
    """The error that kept one tenant from being rated."""

    tenant: str
    reason: str
    message: str
    hint: str = ""


class Rated(msgspec.Struct, kw_only=True, frozen=True):
    """Rated month of one tenant: the identifier of the draft, and the amount without tax as a decimal number."""

    tenant: str
    number: str
    currency: str
    net: str


class RatingAnswer(TaskAnswer, kw_only=True, frozen=True):
    """The tenants that were rated and those that could not be rated.

    If ``message`` is set, the whole month could not be rated and both lists are empty.
    """

    items: list[Rated] = msgspec.field(default_factory=list)
    failed: list[RatingFailure] = msgspec.field(default_factory=list)


def main() -> int:
    """Read a ``RatingOrder`` from standard input, rate its month and write a ``RatingAnswer``."""
    return serve_task(RatingOrder, RatingAnswer, lambda store, order: rate_month(store, order, clock=time.time))


def rate_month(store: Store, order: RatingOrder, *, clock: Callable[[], float]) -> RatingAnswer:
    """Rate the month of one tenant, or of all tenants with usage in the month or a commitment in force in it.

    If the data of one tenant has an error, the other tenants are still rated. The new drafts replace all earlier drafts
    of the month, or of the one tenant. A tenant that could not be rated then has no draft, so none of an earlier rating
    can be issued.

    Raises CalabashError if the order names a tenant that cannot be rated or has nothing to invoice.
    """
    now_s = clock()  # usage after this moment is not in the drafts
    settings = [settings_of(document) for document in store.billing.tariffs()]
    tariffs = [tariff_of(one) for one in settings]
    sellers = {tariff.name: one.seller for tariff, one in zip(tariffs, settings, strict=True)}
    items = Items() if order.keep else None
    digests = UsageDigests(lambda tenant: tenant_month(tenant, order.month, tariffs)[1]) if order.keep else None
    used = month_usage(store, order.month, tenant=order.tenant, items=items, digests=digests)
    guarantees = store.billing.guarantees()
    names = {order.tenant} if order.tenant else {name for name in used.tenants if name} | _committed(store, tariffs)
    invoices: list[Invoice] = []
    drafts: list[InvoiceRecord] = []
    failed: list[RatingFailure] = []
    for name in sorted(names):
        try:
            rated_invoice, lines = month_invoice(
                used.usage_of(name), name, order.month, tariffs, guarantees.get(name, ()), itemised=items is not None
            )
        except CalabashError as error:
            named = mentions(error.message_text, TenantName(name))
            message = error.message if named else f"tenant {name}: {error.message}"
            failed.append(RatingFailure(tenant=name, reason=str(error.reason), message=message, hint=error.hint))
            continue
        if rated_invoice.empty:
            continue
        invoices.append(rated_invoice)
        if items is not None and digests is not None:
            found = items.documents(rated_invoice, lines)
            counted_to_s = order.behind.get(name, order.counted_to_s or now_s)
            of_usage = digests.evidence_of(name, rated_at=now_s, counted_to_s=counted_to_s)
            evidence = {USAGE: of_usage, ITEMS: item_evidence(found)}
            record = record_of(rated_invoice, seller=_seller(rated_invoice, sellers), at=now_s, evidence=evidence)
            drafts.append(replace(record, items=in_parts(found)))
    if order.keep:
        store.billing.put_drafts(drafts, month=order.month, tenant=order.tenant)
    if order.tenant and not invoices:
        _raise_without_draft(order, failed)
    rated = [
        Rated(tenant=b.tenant, number=draft_number(b.tenant, b.month), currency=b.currency, net=str(b.net))
        for b in invoices
    ]
    return RatingAnswer(items=rated, failed=failed)


def _raise_without_draft(order: RatingOrder, failed: Sequence[RatingFailure]) -> None:
    for failure in failed:
        raise CalabashError(failure.message, reason=Reason(failure.reason), hint=failure.hint)
    raise CalabashError(
        f"tenant {order.tenant} has neither usage nor a commitment in {order.month}: there is nothing to invoice",
        reason=Reason.NOT_FOUND,
        hint="see `calabash tenant usage --by tenant` and `calabash invoice tariff list`",
    )


def _committed(store: Store, tariffs: Sequence[Tariff]) -> set[str]:
    """Return the tenants to which a tariff with commitments applies; a tariff that names no tenants applies to all."""
    found = {tenant for tariff in tariffs if tariff.commitments for tenant in tariff.tenants}
    if any(tariff.commitments and not tariff.tenants for tariff in tariffs):
        found |= {tenant.name for tenant in store.tenancy.tenants()}
    return found


def month_invoice(
    usage: Usage,
    tenant: str,
    month: str,
    tariffs: Sequence[Tariff],
    guarantees: Sequence[tuple[float, float]],
    *,
    itemised: bool = False,
) -> tuple[Invoice, list[ItemLine]]:
    """Return the invoice of one tenant for a month, and the items of its itemised usage.

    The month begins and ends in the time zone of the tariff that is in force at its end.

    Args:
        usage: usage records of the tenant.
        tenant: the tenant.
        month: the month, ``YYYY-MM``.
        tariffs: all tariffs.
        guarantees: history of the tenant's guarantee, as pairs of time in seconds and devices. The first entry is the
            creation of the tenant: commitments of tariffs for all tenants apply from that month on.
        itemised: return items; the list is empty otherwise.
    """
    zone_name, period = tenant_month(tenant, month, tariffs)
    history = [
        GuaranteeChange(at_us=round(at_s * SECOND_US), guarantee_milli=round(devices * 1000))
        for at_s, devices in guarantees
    ]
    if history and history[0].at_us >= period.to_us and not len(usage.within(period)):
        tariffs = [tariff for tariff in tariffs if tenant in tariff.tenants]
    items: list[ItemLine] = []
    if itemised:
        lines, items = rate_itemised(usage, tenant=tenant, tariffs=tariffs, guarantees=history, period=period)
    else:
        lines = rate(usage, tenant=tenant, tariffs=tariffs, guarantees=history, period=period)
    return invoice(lines, tenant=tenant, month=month, time_zone=zone_name, period=period), items


def tenant_month(tenant: str, month: str, tariffs: Sequence[Tariff]) -> tuple[str, Period]:
    """Return the name of the time zone of a tenant's invoice, and the begin and end of the month in this time zone."""
    zone_name = _zone(tenant, month, tariffs)
    return zone_name, month_period(month, zone_of(zone_name))


class MonthUsage:
    """Usage records of a month, indexed by tenant.

    Args:
        keys: tenant, project, model, mode and preemptibility; each row refers to one of these tuples by its index.
        rows: the records, in the columns that :meth:`Usage.of_columns` describes; the first is the index in ``keys``.
        items: item number of each row; None if records are not itemised.
    """

    def __init__(self, keys: Sequence[_Key], rows: Column, items: Column | None) -> None:
        self._rows, self._items = rows, items
        self._lines = tuple(LineKey(project, model, mode, bool(late)) for _, project, model, mode, late in keys)
        self._of_tenant: dict[str, list[int]] = defaultdict(list)
        for index, (name, *_) in enumerate(keys):
            self._of_tenant[name].append(index)

    @property
    def tenants(self) -> frozenset[str]:
        """Return all tenants that have a record."""
        return frozenset(self._of_tenant)

    def usage_of(self, tenant: str) -> Usage:
        """Return the records of one tenant. Raises CalabashError for a record that ends before it begins."""
        mine = np.array(self._of_tenant.get(tenant, []), dtype=np.int64)
        chosen = np.isin(self._rows[:, 0], mine)
        items = None if self._items is None else self._items[chosen]
        return Usage.of_columns(self._lines, self._rows[chosen], items)


def month_usage(
    store: Store, month: str, *, tenant: str = "", items: Items | None = None, digests: UsageDigests | None = None
) -> MonthUsage:
    """Read all usage that may belong to the month in any time zone.

    Args:
        items: assigns the records to items of invoices; None: records are not itemised.
        digests: computes the digests of the records; None: no digests are needed.
    """
    keys: dict[_Key, int] = {}
    blocks, numbers = [], []
    for rows in month_pages(store, month, tenant=tenant):
        blocks.append(_columns(rows, keys))
        if items is not None:
            numbers.append(np.fromiter(items.number(rows), dtype=np.int64, count=len(rows)))
        if digests is not None:
            digests.add(rows)
    found = np.concatenate(blocks) if blocks else np.empty((0, 7), dtype=np.int64)
    return MonthUsage(tuple(keys), found, np.concatenate(numbers) if numbers else None)


def month_pages(store: Store, month: str, *, tenant: str = "") -> Iterator[Sequence[Any]]:
    """Yield pages of the usage records that may belong to the month in any time zone."""
    period = month_period(month, zone_of("UTC"))
    from_s, to_s = (period.from_us - ZONE_US) / SECOND_US, (period.to_us + ZONE_US) / SECOND_US
    return store.usage_reader.pages(from_s=from_s, to_s=to_s, tenant=tenant)


def _columns(rows: Sequence[Any], keys: dict[_Key, int]) -> Column:
    """Return a page of usage records as an array of the ledger, one row for each record (see ``Usage.of_columns``).

    Idle time is limited to the duration of the record. New tuples of tenant and properties are added to ``keys``.
    """
    columns = list(zip(*rows, strict=True))
    index = [keys.setdefault(name, len(keys)) for name in zip(*columns[:5], strict=True)]  # the longest loop of all
    found = np.empty((len(rows), 7), dtype=np.int64)
    for column, values in enumerate((index, *columns[5:11])):
        exact = np.array(values)
        found[:, column] = np.rint(exact * SECOND_US) if column in {1, 2, 5, 6} else exact
    found[:, 6] = np.minimum(found[:, 6], found[:, 2] - found[:, 1])
    return found


def _zone(tenant: str, month: str, tariffs: Sequence[Tariff]) -> str:
    end_us = month_period(month, zone_of("UTC")).to_us
    last = tariff_in_force(tariffs, tenant=tenant, at_us=end_us - ZONE_US)
    mine = [tariff for tariff in tariffs if not tariff.tenants or tenant in tariff.tenants]
    return last.time_zone if last else mine[-1].time_zone if mine else "UTC"


def _seller(invoice: Invoice, sellers: dict[str, list[str]]) -> list[str]:
    return next((sellers[line.tariff] for line in reversed(invoice.lines) if line.tariff), [])


if __name__ == "__main__":
    sys.exit(main())
