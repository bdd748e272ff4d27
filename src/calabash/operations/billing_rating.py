"""``python -I -m calabash.operations.billing_rating``: rates a month in a process of its own, so that a million intervals hold
up no grant. The order comes on standard input, because the URL of a database may have a password; the answer is JSON.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from calabash.ledger import GuaranteeChange, Invoice, Tariff, Usage, invoice, month_period, rate
from calabash.ledger.calendar import HOUR_US, SECOND_US, zone_of
from calabash.ledger.intervals import Column, LineKey
from calabash.ledger.tariffs import in_force
from calabash.model.errors import CalabashError
from calabash.operations.billing_documents import draft_number, record_of, settings_of, tariff_of
from calabash.seams.store import Store, open_store

NICENESS = 10
ZONE_US = 15 * HOUR_US  # how far a month of any time zone is from that of UTC
_Key = tuple[str, str, str, str, bool]  # tenant, and what an invoice tells apart


class RatingOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What is to be rated; ``keep``: as drafts in the database."""

    url: str
    month: str
    tenant: str = ""
    keep: bool = True


class Rated(msgspec.Struct, kw_only=True, frozen=True):
    """One tenant's month; ``net`` is money as text."""

    tenant: str
    number: str
    currency: str
    net: str


class RatingAnswer(msgspec.Struct, kw_only=True, frozen=True):
    """What came of it, or why nothing did."""

    items: list[Rated] = []
    reason: str = ""
    message: str = ""
    hint: str = ""


def main() -> int:
    """Rate what standard input says."""
    os.nice(NICENESS)
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=RatingOrder)
    try:
        store = open_store(order.url)
        try:
            answer = RatingAnswer(items=rate_month(store, order, clock=time.time))
        finally:
            store.close()
    except CalabashError as error:
        answer = RatingAnswer(reason=str(error.reason), message=error.message, hint=error.hint)
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    return 0


def rate_month(store: Store, order: RatingOrder, *, clock: Callable[[], float]) -> list[Rated]:
    """Rate the month of one tenant or of all that used something or committed to something."""
    now_s = clock()  # what is used from here on is not in it
    settings = [settings_of(document) for document in store.billing.tariffs()]
    tariffs = [tariff_of(one) for one in settings]
    sellers = {tariff.name: one.seller for tariff, one in zip(tariffs, settings, strict=True)}
    used = month_usage(store, order.month, tenant=order.tenant)
    committed = {t for tariff in tariffs if tariff.commitments for t in tariff.tenants}
    names = {order.tenant} if order.tenant else {name for name in used if name} | committed  # "" is on nobody's account
    guarantees = store.billing.guarantees()
    bills = [
        month_invoice(used.get(name, Usage.of(())), name, order.month, tariffs, guarantees.get(name, ()))
        for name in sorted(names)
    ]
    if order.keep:
        store.billing.put_drafts([record_of(bill, seller=_seller(bill, sellers), at=now_s) for bill in bills])
    return [
        Rated(tenant=b.tenant, number=draft_number(b.tenant, b.month), currency=b.currency, net=str(b.net))
        for b in bills
    ]


def month_invoice(
    usage: Usage,
    tenant: str,
    month: str,
    tariffs: Sequence[Tariff],
    guarantees: Sequence[tuple[float, float]],
) -> Invoice:
    """The invoice of one tenant, in the time zone of the tariff that is in force at the end of the month."""
    zone_name = _zone(tenant, month, tariffs)
    period = month_period(month, zone_of(zone_name))
    history = [
        GuaranteeChange(at_us=round(at_s * SECOND_US), guarantee_milli=round(devices * 1000))
        for at_s, devices in guarantees
    ]
    lines = rate(usage, tenant=tenant, tariffs=tariffs, guarantees=history, period=period)
    return invoice(lines, tenant=tenant, month=month, time_zone=zone_name, period=period)


def month_usage(store: Store, month: str, *, tenant: str = "") -> dict[str, Usage]:
    """All usage that may belong to the month in any time zone, by tenant."""
    period = month_period(month, zone_of("UTC"))
    from_s, to_s = (period.from_us - ZONE_US) / SECOND_US, (period.to_us + ZONE_US) / SECOND_US
    keys: dict[_Key, int] = {}
    blocks = [_columns(rows, keys) for rows in store.usage_reader.pages(from_s=from_s, to_s=to_s, tenant=tenant)]
    if not blocks:
        return {}
    rows = np.concatenate(blocks)
    of_tenant: dict[str, list[int]] = defaultdict(list)
    for (name, *_), index in keys.items():
        of_tenant[name].append(index)
    lines = tuple(LineKey(project, model, mode, bool(late)) for _, project, model, mode, late in keys)
    return {
        name: Usage.of_columns(lines, rows[np.isin(rows[:, 0], np.array(mine))]) for name, mine in of_tenant.items()
    }


def _columns(rows: Sequence[Any], keys: dict[_Key, int]) -> Column:
    """A page of the table as the ledger's columns: shape (rows, 7)."""
    tenant, project, model, mode, preemptible, from_s, to_s, share, memory, busy_s, idle_s = zip(*rows, strict=True)
    names = zip(tenant, project, model, mode, preemptible, strict=True)
    index = [keys.setdefault(name, len(keys)) for name in names]  # plain tuples: this is the longest loop of all
    found = np.empty((len(rows), 7), dtype=np.int64)
    for column, values in enumerate((index, from_s, to_s, share, memory, busy_s, idle_s)):
        exact = np.array(values)
        found[:, column] = np.rint(exact * SECOND_US) if column in {1, 2, 5, 6} else exact
    return found


def _zone(tenant: str, month: str, tariffs: Sequence[Tariff]) -> str:
    end_us = month_period(month, zone_of("UTC")).to_us
    last = in_force(tariffs, tenant=tenant, at_us=end_us - ZONE_US)
    mine = [tariff for tariff in tariffs if not tariff.tenants or tenant in tariff.tenants]
    return last.time_zone if last else mine[-1].time_zone if mine else "UTC"


def _seller(bill: Invoice, sellers: dict[str, list[str]]) -> list[str]:
    return next((sellers[line.tariff] for line in reversed(bill.lines) if line.tariff), [])


if __name__ == "__main__":
    sys.exit(main())
