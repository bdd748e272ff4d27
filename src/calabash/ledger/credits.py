"""Credit notes for issued invoices, and the invoices that are paid with them.

Theory of operation. A credit note is an invoice with negative amounts. Its net amount is divided among the taxes of the
credited invoice in proportion to their net amounts, so its tax is that of the invoice. It does not change any invoice: the next
invoices of the tenant in the same currency are paid with it, in the order in which credit notes were issued, each up to its
total with tax. What one invoice does not use stays open for the one after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from calabash.ledger.invoices import Invoice, InvoiceKind, Settlement, invoice
from calabash.ledger.money import apportion, digits, rounded
from calabash.ledger.rated import Measure, RatedLine
from calabash.model.errors import CalabashError, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCredit:
    """Credit note with its open amount: the amount with tax that no invoice has used yet."""

    number: str
    reason: str
    amount: Decimal


def credit_note(issued: Invoice, *, amount: Decimal, reason: str, credited: Decimal) -> Invoice:
    """Return a credit note for an issued invoice.

    Args:
        amount: net amount, above 0, with at most the decimals of the currency.
        credited: net amount of the existing credit notes for the invoice.

    Raises:
        CalabashError(CONFLICT): ``issued`` is a draft, a reversal or a credit note.
        CalabashError(BAD_REQUEST): the amount is out of range.
    """
    if not issued.number or issued.kind is not InvoiceKind.INVOICE:
        raise CalabashError(
            f"{issued.number or 'a draft'} is {'a ' + issued.kind.value if issued.number else 'not issued'}: only an issued"
            " invoice can be credited",
            reason=Reason.CONFLICT,
            hint="see `calabash invoice list`",
        )
    places, left = digits(issued.currency), Fraction(issued.net) - Fraction(credited)
    exact = Fraction(amount) if amount.is_finite() else Fraction(0)
    if exact <= 0 or (exact * 10**places).denominator != 1 or exact > left:
        raise CalabashError(
            f"invoice {issued.number} cannot be credited with {str(amount)[:40]}: the limit is"
            f" {rounded(left, issued.currency)} {issued.currency}, its net amount without earlier credit notes",
            reason=Reason.BAD_REQUEST,
            hint=f"give a net amount above 0 with at most {places} decimals",
        )
    nets: dict[tuple[str, Decimal], Fraction] = {}
    for line in issued.lines:
        tax = line.tax_name, line.tax_percent
        nets[tax] = nets.get(tax, Fraction(0)) + Fraction(line.amount)
    taxes = sorted(nets)
    parts = apportion([exact * nets[tax] / Fraction(issued.net) for tax in taxes], issued.currency)
    lines = [
        RatedLine(
            tenant=issued.tenant,
            measure=Measure.CREDIT,
            quantity=0,
            per_hour=1,
            unit="",
            currency=issued.currency,
            tax_name=name,
            tax_percent=percent,
            amount=-part,
        )
        for (name, percent), part in zip(taxes, parts, strict=True)
        if part
    ]
    note = invoice(lines, tenant=issued.tenant, month=issued.month, time_zone=issued.time_zone, period=issued.period)
    return replace(note, kind=InvoiceKind.CREDIT, credits=issued.number, reason=reason)


def settle_with_credits(total: Decimal, notes: Sequence[OpenCredit], currency: str) -> tuple[Settlement, ...]:
    """Return the settlements by which credit notes pay an invoice.

    The notes are used in their order until the total is paid or nothing is open.

    Args:
        total: total of the invoice with tax.
        notes: credit notes of the tenant with open amounts.
    """
    left, found = Fraction(total), []
    for note in notes:
        used = min(left, Fraction(note.amount))
        if used > 0:
            found.append(Settlement(number=note.number, reason=note.reason, amount=rounded(used, currency)))
            left -= used
    return tuple(found)
