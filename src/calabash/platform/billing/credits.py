"""Credit notes: find open ones, settle drafts with them, create them, and check whether a document may be reversed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

import msgspec

from calabash.adapters.store.billing.documents import InvoiceRecord
from calabash.ledger import InvoiceKind, OpenCredit, credit_note, settle_with_credits
from calabash.model.errors import CalabashError, Reason
from calabash.platform.billing.documents import invoice_of, record_of


def open_credits(invoices: Sequence[InvoiceRecord], currency: str) -> list[OpenCredit]:
    """Return the credit notes of a tenant in a currency that have an amount left, oldest first.

    Args:
        invoices: all invoices, credit notes and reversals that were issued to the tenant.
    """
    used = _used(invoices)
    found = [
        OpenCredit(
            number=note.number,
            reason=note.document["reason"],
            amount=-Decimal(note.total) - used.get(note.number, Decimal(0)),
        )
        for note in invoices
        if note.kind == InvoiceKind.CREDIT and not note.reversed_by and note.currency == currency
    ]
    return [credit for credit in found if credit.amount > 0]


def settled(draft: InvoiceRecord, invoices: Sequence[InvoiceRecord]) -> InvoiceRecord:
    """Return the draft of an invoice with the credit notes that will be deducted from it when it is issued.

    Args:
        draft: the draft.
        invoices: all invoices, credit notes and reversals that were issued to its tenant.
    """
    parts = settle_with_credits(Decimal(draft.total), open_credits(invoices, draft.currency), draft.currency)
    return replace(draft, document={**draft.document, "settled": msgspec.to_builtins(parts)})


def noted(issued: InvoiceRecord, invoices: Sequence[InvoiceRecord], *, amount: Decimal, reason: str) -> InvoiceRecord:
    """Return a new credit note for an issued invoice, in the form in which it will be stored. Does not store it.

    Raises CONFLICT if the invoice was reversed, and BAD_REQUEST if the amount is out of range.

    Args:
        issued: the invoice with its lines.
        invoices: all invoices, credit notes and reversals that were issued to its tenant.
        amount: amount to credit, without tax.
        reason: reason that is printed on the credit note.
    """
    back = next((invoice.reversed_by for invoice in invoices if invoice.number == issued.number), "")
    if back:
        raise CalabashError(
            f"invoice {issued.number} was taken back by {back} and cannot be credited",
            reason=Reason.CONFLICT,
            hint="credit the invoice that was issued in its place",
        )
    credited = sum((-Decimal(note.net) for note in _notes_for(issued.number, invoices)), Decimal(0))
    note = credit_note(invoice_of(issued), amount=amount, reason=reason, credited=credited)
    return record_of(note, seller=issued.document["seller"])


def require_reversible(number: str, invoices: Sequence[InvoiceRecord]) -> None:
    """Raise CONFLICT if an invoice or a credit note may not be reversed.

    An invoice may not be reversed while it has credit notes. A credit note may not be reversed while its amount is
    deducted from an invoice.
    """
    notes = [note.number for note in _notes_for(number, invoices)]
    if notes:
        raise CalabashError(
            f"invoice {number} has credit notes: {', '.join(notes[:5])}",
            reason=Reason.CONFLICT,
            hint=f"take them back first: calabash invoice void {notes[0]}",
        )
    paid = [
        invoice.number
        for invoice in _standing(invoices)
        if any(part["number"] == number for part in invoice.document.get("settled", ()))
    ]
    if paid:
        raise CalabashError(
            f"credit note {number} was used by invoice {', '.join(paid[:5])}",
            reason=Reason.CONFLICT,
            hint=f"take that invoice back first: calabash invoice void {paid[-1]}",
        )


def _notes_for(number: str, invoices: Sequence[InvoiceRecord]) -> list[InvoiceRecord]:
    return [
        invoice
        for invoice in invoices
        if invoice.kind == InvoiceKind.CREDIT and not invoice.reversed_by and invoice.document["credits"] == number
    ]


def _standing(invoices: Sequence[InvoiceRecord]) -> list[InvoiceRecord]:
    return [invoice for invoice in invoices if invoice.kind == InvoiceKind.INVOICE and not invoice.reversed_by]


def _used(invoices: Sequence[InvoiceRecord]) -> dict[str, Decimal]:
    """Return for each credit note, by number, the amount that was deducted from invoices that are not reversed."""
    used: dict[str, Decimal] = {}
    for invoice in _standing(invoices):
        for part in invoice.document.get("settled", ()):
            used[part["number"]] = used.get(part["number"], Decimal(0)) + Decimal(part["amount"])
    return used
