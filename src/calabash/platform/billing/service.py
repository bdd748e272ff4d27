"""Billing service: sums of usage, tariffs, drafts, invoices, credit notes and present spending.

Rating and verification read a whole month, so they run in a child process, one at a time.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Protocol

import msgspec
import structlog

from calabash.adapters.clock import Clock
from calabash.adapters.store import Store
from calabash.adapters.store.billing.documents import InvoiceFilter, InvoiceRecord
from calabash.adapters.store.usage.reader import DIMENSIONS
from calabash.api import billing
from calabash.ledger import InvoiceKind, reverse
from calabash.ledger.calendar import SECOND_US, month_at, zone_of
from calabash.model.allocation import UsageRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.money import Money
from calabash.platform.billing.credits import noted, open_credits, require_reversible, settled
from calabash.platform.billing.documents import (
    counted_to_s,
    invoice_of,
    read_draft_number,
    record_of,
    settings_of,
    tariff_of,
    view_of,
)
from calabash.platform.billing.process import run_task
from calabash.platform.billing.rating_process import RatingAnswer, RatingOrder
from calabash.platform.billing.verification_process import VerifyAnswer, VerifyOrder

SPENT_KEPT_S = 600.0
SUMS_MAX = 1000
SPAN_S_MAX = 400 * 86_400.0
_MIB_PER_GIB = 1024
_HOUR_S = 3600.0

_NUMBER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~@-]{0,159}")

log = structlog.get_logger(__name__)


class RunningUsage(Protocol):
    """Usage of running allocations since their last usage record."""

    def records(self) -> tuple[Sequence[UsageRecord], float]:
        """Return the usage as records, and the time up to which usage is complete together with these records.

        The records are not written to the store. The time is in seconds since the epoch.
        """
        ...

    def write(self) -> tuple[float, Mapping[str, float]]:
        """Write the usage to the store. Raises CalabashError.

        Returns:
            The time (seconds since the epoch) up to which usage is complete in the store, and the same time by tenant
            for the tenants for which it is earlier.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Cost of a tenant's usage in a month up to time ``at_s`` (seconds since the epoch), without tax."""

    amount: Decimal
    currency: str
    at_s: float

    @property
    def money(self) -> Money:
        return Money(amount=self.amount, currency=self.currency)


class Billing:
    """Usage, tariffs and invoices of one pool. Safe for threads; every method may raise CalabashError.

    Args:
        store: the database.
        clock: the time.
        running: usage of running allocations that is not in the store yet; None: only usage in the store counts.
    """

    def __init__(self, store: Store, clock: Clock, running: RunningUsage | None = None) -> None:
        self._store = store
        self._clock = clock
        self._running = running
        self._runs = ThreadPoolExecutor(1, thread_name_prefix="billing")
        self._lock = threading.Lock()
        self._spent: dict[str, tuple[float, dict[str, Spent]]] = {}
        self._counting: dict[str, Future[None]] = {}

    def close(self) -> None:
        """Start no more child processes. Does not wait for one that runs."""
        self._runs.shutdown(wait=False, cancel_futures=True)

    # -- usage -------------------------------------------------------------------------------------------------

    def usage(self, asked: billing.UsageQuestion, *, tenants: frozenset[str] | None, user: str) -> billing.UsageSums:
        """Return sums of usage. Raises CalabashError for an unknown dimension or a time range out of bounds.

        Args:
            asked: dimensions by which usage is summed, and the time range.
            tenants: tenants whose usage counts, of all their users; None: all tenants.
            user: user whose own usage counts in addition, also in other tenants.
        """
        by = [name.strip() for name in asked.by.split(",") if name.strip()]
        unknown = [name for name in by if name not in DIMENSIONS]
        if unknown or len(set(by)) < len(by):
            raise CalabashError(
                f"usage cannot be summed by {', '.join(unknown or by)}", hint=f"each once of: {', '.join(DIMENSIONS)}"
            )
        if not asked.from_s < asked.to_s <= asked.from_s + SPAN_S_MAX:
            raise CalabashError(
                f"usage from {asked.from_s:.0f} to {asked.to_s:.0f} is out of range",
                hint=f"from before to, at most {SPAN_S_MAX / 86_400:.0f} days",
            )
        running, counted_to_s = self._running.records() if self._running else ((), self._clock.now_s())
        rows = self._store.usage_reader.sums(
            by,
            from_s=asked.from_s,
            to_s=asked.to_s,
            tenants=tenants,
            user=user,
            running=running,
            limit=SUMS_MAX + 1,
        )
        items = [
            billing.UsageSum(
                gpu_hours=(row["allocated_gpu_s"] or 0.0) / _HOUR_S,
                memory_gib_hours=(row["memory_mib_s"] or 0.0) / _MIB_PER_GIB / _HOUR_S,
                busy_hours=(row["used_gpu_s"] or 0.0) / _HOUR_S,
                idle_hours=(row["idle_gpu_s"] or 0.0) / _HOUR_S,
                uncertain_hours=(row["uncertain_gpu_s"] or 0.0) / _HOUR_S,
                **{name: row[name] for name in by},
            )
            for row in rows[:SUMS_MAX]
        ]
        return billing.UsageSums(
            items=items,
            from_s=asked.from_s,
            to_s=asked.to_s,
            complete=len(rows) <= SUMS_MAX,
            counted_to_s=min(asked.to_s, counted_to_s),
        )

    # -- tariffs -----------------------------------------------------------------------------------------------

    def tariffs(self, *, tenants: frozenset[str] | None = None) -> list[billing.TariffSettings]:
        """Return the stored tariffs.

        Args:
            tenants: return only tariffs that apply to one of these tenants, and leave the names of other tenants out of
                them; None: return all tariffs unchanged.
        """
        found = [settings_of(document) for document in self._store.billing.tariffs()]
        if tenants is None:
            return found
        return [
            msgspec.structs.replace(one, tenants=[name for name in one.tenants if name in tenants])
            for one in found
            if not one.tenants or not tenants.isdisjoint(one.tenants)
        ]

    def put_tariff(self, settings: billing.TariffSettings) -> None:
        """Create or replace a tariff. Raises CalabashError if it is invalid."""
        tariff_of(settings)
        document = msgspec.to_builtins(settings)
        self._store.billing.put_tariff(settings.name, settings.valid_from, document, at=self._clock.now_s())

    # -- invoices ----------------------------------------------------------------------------------------------

    def draft(self, order: billing.InvoiceOrder) -> Future[billing.InvoiceList]:
        """Rate a month in a child process; return the drafts, and the tenants that could not be rated.

        First writes the usage of running allocations up to now to the store, so that the drafts have it.
        """
        return self._runs.submit(self._drafted, order)

    def invoices(
        self, page: billing.InvoicePage, *, tenants: frozenset[str] | None, drafts: bool
    ) -> billing.InvoiceList:
        """Return a page of issued invoices, without their lines.

        Args:
            page: selects the invoices.
            tenants: return only invoices of these tenants; None: of all.
            drafts: True to begin the first page with the drafts.
        """
        which = InvoiceFilter(tenant=page.tenant, month=page.month, after=page.after, limit=page.limit, tenants=tenants)
        issued = self._store.billing.invoices(which)
        first = self._store.billing.drafts(which) if drafts and not page.after else []
        full = len(issued) == page.limit
        return billing.InvoiceList(
            items=[self.view(replace(record, lines=())) for record in (*first, *issued)],
            next=issued[-1].number if full else "",
        )

    def invoice(self, number: str) -> InvoiceRecord:
        """Return an invoice by its number, or a draft by its identifier, with its lines. Raises NOT_FOUND."""
        draft = read_draft_number(number)
        record: InvoiceRecord | None = None
        if _NUMBER.fullmatch(number) is None:
            pass  # no invoice number: do not query the database
        elif draft is not None:
            tenant, month = draft
            found = self._store.billing.drafts(InvoiceFilter(tenant=tenant, month=month, limit=1))
            record = found[0] if found else None
        else:
            record = self._store.billing.invoice(number)
        if record is None:
            raise CalabashError(
                f"there is no invoice {number[:80]!r}", reason=Reason.NOT_FOUND, hint="see `calabash invoice list`"
            )
        return record

    def view(self, record: InvoiceRecord) -> billing.InvoiceView:
        """Return the API's view of an invoice, a credit note or a draft.

        The view of a draft has the credit notes that will be deducted from it. The view of a credit note has the amount
        that is left of it.
        """
        if not record.number:
            return view_of(settled(record, self._store.billing.invoices_of(record.tenant)))
        if record.kind != InvoiceKind.CREDIT:
            return view_of(record)
        notes = open_credits(self._store.billing.invoices_of(record.tenant), record.currency)
        left = next((str(one.amount) for one in notes if one.number == record.number), "0")
        return msgspec.structs.replace(view_of(record), open=left)

    def items(self, record: InvoiceRecord, page: billing.ItemPage) -> billing.InvoiceItems:
        """Return a page of the itemised usage of an invoice or a draft."""
        parts = self._store.billing.items(record, after=int(page.after or 0))
        items = [msgspec.convert(item, billing.InvoiceItem) for _, part in parts for item in part]
        return billing.InvoiceItems(items=items, next=str(parts[-1][0]) if parts else "")

    def verify(self, number: str) -> Future[billing.InvoiceVerdict]:
        """Verify an issued invoice against its seal, in a child process."""
        return self._runs.submit(self._verified, number)

    def issue(self, number: str, *, by: str) -> billing.InvoiceView:
        """Issue a draft as an invoice.

        Raises CONFLICT if the month is not over or was not over when the draft was made, or if there is nothing to invoice.

        Args:
            number: identifier of the draft.
            by: name of the user who issues it.
        """
        record = self.invoice(number)
        if record.number:
            raise CalabashError(f"invoice {record.number} is issued already", reason=Reason.CONFLICT)
        if not record.currency or invoice_of(record).empty:
            raise CalabashError(
                f"the draft for {record.tenant} in {record.month} has no"
                f" {'usage and no commitment' if record.currency or not record.lines else 'tariff, so no currency'}",
                reason=Reason.CONFLICT,
                hint=f"apply a tariff and draft it again, or delete it: calabash invoice void {number}",
            )
        if "evidence" not in record.document:
            raise CalabashError(
                f"the draft for {record.tenant} in {record.month} was made by an earlier version, without itemised usage",
                reason=Reason.CONFLICT,
                hint=f"draft it again: calabash invoice draft {record.month} --tenant {record.tenant}",
            )
        now_s, end_s = self._clock.now_s(), record.document["period"]["to_us"] / SECOND_US
        if now_s < end_s:
            raise CalabashError(
                f"{record.month} is not over in {record.document['time_zone']}",
                reason=Reason.CONFLICT,
                hint="issue it when the month is over; a draft shows the usage so far",
            )
        if min(record.at, counted_to_s(record) or record.at) < end_s:
            raise CalabashError(
                f"the draft for {record.tenant} counts usage from before the end of {record.month} only",
                reason=Reason.CONFLICT,
                hint=f"draft it again: calabash invoice draft {record.month} --tenant {record.tenant}",
            )
        series = self._series(record)
        issued = self._store.billing.issue(
            record.tenant, record.month, series=series, at=now_s, by=by, complete=settled
        )
        return self.view(self.invoice(issued))

    def credit(self, number: str, order: billing.CreditOrder, *, by: str) -> billing.InvoiceView:
        """Issue a credit note for an invoice; its amount is deducted from the next invoices of the tenant.

        Args:
            number: number of the invoice.
            order: amount and reason.
            by: name of the user who issues the credit note.
        """
        record = self.invoice(number)

        def made(issued: Sequence[InvoiceRecord]) -> InvoiceRecord:
            return noted(record, issued, amount=order.amount, reason=order.reason)

        series, now_s = f"C{self._series(record)}", self._clock.now_s()
        note = self._store.billing.credit(record.tenant, make=made, series=series, at=now_s, by=by)
        return self.view(self.invoice(note))

    def void(self, number: str, *, by: str) -> billing.InvoiceView:
        """Void an invoice or a draft.

        For an invoice, issues a reversal in the name of user ``by`` and returns it. A draft is deleted, and its last
        view is returned.
        """
        record = self.invoice(number)
        if not record.number:
            self._store.billing.delete_draft(record.tenant, record.month)
            return self.view(record)
        back = record_of(reverse(invoice_of(record)), seller=record.document["seller"])
        issued = self._store.billing.reverse(
            back,
            series=self._series(record),
            at=self._clock.now_s(),
            by=by,
            check=lambda issued: require_reversible(record.number, issued),
        )
        return self.view(self.invoice(issued))

    # -- budgets -----------------------------------------------------------------------------------------------

    def spent(self, tenant: str, month: str = "") -> Spent | None:
        """Return the cost of the tenant's usage in a month without tax; None if it was not counted yet or there is no tariff.

        Returns the last count without waiting. If that is older than SPENT_KEPT_S, starts another one in a child process.

        Args:
            month: YYYY-MM; empty for the present month in UTC.
        """
        now_s = self._clock.now_s()
        month = month or month_at(round(now_s * SECOND_US), zone_of("UTC"))
        with self._lock:
            at_s, known = self._spent.get(month, (-SPENT_KEPT_S, {}))
            running = self._counting.get(month)
            if now_s - at_s >= SPENT_KEPT_S and (running is None or running.done()):
                self._counting = {month: self._runs.submit(self._count, month)}
        return known.get(tenant)

    def _count(self, month: str) -> None:
        at_s = self._clock.now_s()
        try:
            answer = _rated(RatingOrder(url=self._store.url, month=month, keep=False))
        except CalabashError as error:
            log.warning("cannot count the spending of the month now", month=month, error=error.message)
            answer = RatingAnswer()
        for failure in answer.failed:
            log.warning("cannot count the spending of a tenant", tenant=failure.tenant, error=failure.message)
        rated = [one for one in answer.items if one.currency]
        known = {r.tenant: Spent(amount=Decimal(r.net), currency=r.currency, at_s=at_s) for r in rated}
        with self._lock:
            self._spent = {month: (at_s, known)}

    def _drafted(self, order: billing.InvoiceOrder) -> billing.InvoiceList:
        until_s, behind = self._running.write() if self._running else (self._clock.now_s(), {})
        answer = _rated(
            RatingOrder(
                url=self._store.url,
                month=order.month,
                tenant=order.tenant,
                counted_to_s=until_s,
                behind=dict(behind),
            )
        )
        return billing.InvoiceList(
            items=[self.view(replace(self.invoice(r.number), lines=())) for r in answer.items],
            failed=[billing.DraftFailure(tenant=f.tenant, message=f.message, hint=f.hint) for f in answer.failed],
        )

    def _verified(self, number: str) -> billing.InvoiceVerdict:
        order = VerifyOrder(url=self._store.url, number=number)
        module, what = "calabash.platform.billing.verification_process", f"verifying {number}"
        verdict = run_task(module, order, VerifyAnswer, what=what).verdict
        assert verdict is not None  # of an answer without an error
        return verdict

    def _series(self, record: InvoiceRecord) -> str:
        """Return the series of invoice numbers: the present year in the invoice's time zone."""
        now = datetime.fromtimestamp(self._clock.now_s(), zone_of(record.document["time_zone"]))
        return f"{now:%Y}"


def _rated(order: RatingOrder) -> RatingAnswer:
    return run_task("calabash.platform.billing.rating_process", order, RatingAnswer, what=f"rating {order.month}")
