"""Credit notes: find open ones, settle drafts with them, create them, and check whether a document may be reversed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

import msgspec

from calabash.adapters.store.billing.documents import BillRecord
from calabash.ledger import InvoiceKind, OpenCredit, credit_note, settle_with_credits
from calabash.model.errors import CalabashError, Reason
from calabash.platform.billing.documents import invoice_of, record_of


def open_credits(bills: Sequence[BillRecord], currency: str) -> list[OpenCredit]:
    """Return the credit notes of a tenant that are not used up, oldest first.

    Args:
        bills: all invoices, credit notes and reversals of the tenant.
        currency: currency of the credit notes.
    """
    used = _used(bills)
    found = [
        OpenCredit(
            number=note.number,
            reason=note.document["reason"],
            amount=-Decimal(note.total) - used.get(note.number, Decimal(0)),
        )
        for note in bills
        if note.kind == InvoiceKind.CREDIT and not note.reversed_by and note.currency == currency
    ]
    return [credit for credit in found if credit.amount > 0]


def settled(draft: BillRecord, bills: Sequence[BillRecord]) -> BillRecord:
    """Return the draft with the credit notes that will be deducted from its total when it is issued."""
    parts = settle_with_credits(Decimal(draft.total), open_credits(bills, draft.currency), draft.currency)
    return replace(draft, document={**draft.document, "settled": msgspec.to_builtins(parts)})


def noted(issued: BillRecord, bills: Sequence[BillRecord], *, amount: Decimal, reason: str) -> BillRecord:
    """Return a credit note for an invoice.

    Raises CONFLICT if the invoice was reversed, and CalabashError like ``credit_note``.

    Args:
        issued: the invoice with its lines.
        bills: all invoices, credit notes and reversals of its tenant.
        amount: amount of the credit note, without tax.
        reason: reason, which the credit note states.
    """
    back = next((bill.reversed_by for bill in bills if bill.number == issued.number), "")
    if back:
        raise CalabashError(
            f"invoice {issued.number} was taken back by {back} and cannot be credited",
            reason=Reason.CONFLICT,
            hint="credit the invoice that was issued in its place",
        )
    credited = sum((-Decimal(note.net) for note in _notes_for(issued.number, bills)), Decimal(0))
    note = credit_note(invoice_of(issued), amount=amount, reason=reason, credited=credited)
    return record_of(note, seller=issued.document["seller"])


def require_reversible(number: str, bills: Sequence[BillRecord]) -> None:
    """Raise CONFLICT for an invoice that has credit notes, and for a credit note that was deducted from an invoice."""
    notes = [note.number for note in _notes_for(number, bills)]
    if notes:
        raise CalabashError(
            f"invoice {number} has credit notes: {', '.join(notes[:5])}",
            reason=Reason.CONFLICT,
            hint=f"take them back first: calabash invoice void {notes[0]}",
        )
    paid = [
        bill.number
        for bill in _standing(bills)
        if any(part["number"] == number for part in bill.document.get("settled", ()))
    ]
    if paid:
        raise CalabashError(
            f"credit note {number} was used by invoice {', '.join(paid[:5])}",
            reason=Reason.CONFLICT,
            hint=f"take that invoice back first: calabash invoice void {paid[-1]}",
        )


def _notes_for(number: str, bills: Sequence[BillRecord]) -> list[BillRecord]:
    return [
        bill
        for bill in bills
        if bill.kind == InvoiceKind.CREDIT and not bill.reversed_by and bill.document["credits"] == number
    ]


def _standing(bills: Sequence[BillRecord]) -> list[BillRecord]:
    return [bill for bill in bills if bill.kind == InvoiceKind.INVOICE and not bill.reversed_by]


def _used(bills: Sequence[BillRecord]) -> dict[str, Decimal]:
    """Return the amount of each credit note that invoices in force have used."""
    used: dict[str, Decimal] = {}
    for bill in _standing(bills):
        for part in bill.document.get("settled", ()):
            used[part["number"]] = used.get(part["number"], Decimal(0)) + Decimal(part["amount"])
    return used
