"""Program that verifies an issued invoice: ``python -I -m calabash.platform.billing.verification_process``."""

from __future__ import annotations

import hashlib
import sys
from decimal import Decimal

import msgspec

from calabash.adapters.store import Store
from calabash.adapters.store.billing.documents import InvoiceRecord
from calabash.adapters.store.billing.seals import SEAL, canonical
from calabash.api.billing import InvoiceCheck, InvoiceVerdict
from calabash.ledger import Period
from calabash.model.errors import CalabashError, Reason
from calabash.platform.billing.evidence import ITEMS, USAGE, ItemEvidence, UsageDigests, UsageEvidence
from calabash.platform.billing.process import TaskAnswer, TaskOrder, serve_task
from calabash.platform.billing.rating_process import month_pages

OK, CHANGED, ABSENT, NOT_KEPT = "ok", "changed", "absent", "not-kept"
_PARTS_AT_ONCE = 20


class VerifyOrder(TaskOrder, kw_only=True, frozen=True):
    """Order to verify the invoice with this number."""

    number: str


class VerifyAnswer(TaskAnswer, kw_only=True, frozen=True):
    """Verdict on the invoice, or an error."""

    verdict: InvoiceVerdict | None = None


def main() -> int:
    """Read a ``VerifyOrder`` from standard input, verify its invoice and write a ``VerifyAnswer``."""
    return serve_task(VerifyOrder, VerifyAnswer, lambda store, order: VerifyAnswer(verdict=verify(store, order.number)))


def verify(store: Store, number: str) -> InvoiceVerdict:
    """Verify seal, items and usage records of an issued invoice. Raises NOT_FOUND."""
    record = store.billing.invoice(number)
    if record is None:
        raise CalabashError(
            f"there is no issued invoice {number[:80]!r}",
            reason=Reason.NOT_FOUND,
            hint="a draft has no seal; see `calabash invoice list`",
        )
    found = [("seal", *_seal(record))]
    evidence = record.document.get("evidence")
    if evidence is not None:
        found.append((ITEMS, *_items(store, record, msgspec.convert(evidence[ITEMS], ItemEvidence))))
        found.append((USAGE, *_usage(store, record, msgspec.convert(evidence[USAGE], UsageEvidence))))
    checks = [InvoiceCheck(number=number, what=what, state=state, detail=detail) for what, state, detail in found]
    sound = all(check.state != CHANGED for check in checks)
    return InvoiceVerdict(number=number, sound=sound, seal=record.document.get(SEAL, ""), items=checks)


def _seal(record: InvoiceRecord) -> tuple[str, str]:
    sealed = record.document.get(SEAL, "")
    if not sealed:
        return ABSENT, "issued by a version that sealed no invoices"
    if sealed != record.seal:
        return CHANGED, f"the head or a line was changed: sealed {sealed}, now {record.seal}"
    return OK, f"{len(record.lines)} lines, net {record.net} {record.currency}"


def _items(store: Store, record: InvoiceRecord, sealed: ItemEvidence) -> tuple[str, str]:
    digest, count, amount, part = hashlib.sha256(), 0, Decimal(0), 0
    while parts := store.billing.items(record, after=part, limit=_PARTS_AT_ONCE):
        for part, items in parts:  # noqa: B007 - the last number is where the next page begins
            for item in items:
                digest.update(canonical(item) + b"\n")
                count, amount = count + 1, amount + Decimal(item["amount"])
    if (digest.hexdigest(), count) != (sealed.sha256, sealed.count):
        return CHANGED, f"{count} items with digest {digest.hexdigest()}, sealed {sealed.count} with {sealed.sha256}"
    if amount != Decimal(record.net):
        return CHANGED, f"the items come to {amount}, the invoice to {record.net}"
    return OK, f"{count} items, {amount} {record.currency}"


def _usage(store: Store, record: InvoiceRecord, sealed: UsageEvidence) -> tuple[str, str]:
    period = msgspec.convert(record.document["period"], Period)
    digests = UsageDigests(lambda _: period, last_id=sealed.last_id)
    for rows in month_pages(store, record.month, tenant=record.tenant):
        digests.add(rows)
    found = digests.evidence_of(record.tenant)
    late = f", {digests.late} records came after the rating and are not invoiced" if digests.late else ""
    if (found.sha256, found.records) == (sealed.sha256, sealed.records):
        return OK, f"{found.records} records{late}"
    removed = store.removed_usage()
    if removed.until_s > period.from_us / 1e6 and removed.at_s >= sealed.rated_at:
        return NOT_KEPT, f"retention has removed or merged records of the month, {found.records} are left{late}"
    return CHANGED, _difference(found, sealed) + late


def _difference(found: UsageEvidence, sealed: UsageEvidence) -> str:
    if found.records != sealed.records:
        return f"{found.records} records, sealed {sealed.records}"
    return f"a record was changed: sealed {sealed.sha256}, now {found.sha256}"


if __name__ == "__main__":
    sys.exit(main())
