"""Invoices from rated lines, and reversals of invoices. An invoice is an immutable value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction

from calabash.ledger.calendar import Period
from calabash.ledger.money import rounded
from calabash.ledger.rated import RatedLine
from calabash.model.errors import CalabashError, Reason


class InvoiceKind(StrEnum):
    """Kinds of invoices: an invoice, a credit note for an invoice, or a reversal of either."""

    INVOICE = "invoice"
    CREDIT = "credit"
    REVERSAL = "reversal"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaxLine:
    """Sum of one tax over all lines that have it; ``net`` is the taxed amount."""

    name: str
    percent: Decimal
    net: Decimal
    amount: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """Amount of a credit note that pays an invoice; ``amount`` includes tax and is above 0."""

    number: str
    reason: str
    amount: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoice:
    """Invoice of one tenant for one month; amounts are in ``currency``.

    Args:
        month: the month like ``2026-11``.
        net, total: sums without and with tax.
        reverses: number of the invoice that a reversal reverses; "" if this is no reversal.
        number: number of the invoice; "" for a draft.
        credits: number of the invoice that a credit note credits; "" if this is no credit note.
        reason: reason of a credit note; "" if this is no credit note.
        settled: amounts of credit notes that pay the invoice.
    """

    tenant: str
    month: str
    time_zone: str
    period: Period
    currency: str
    lines: tuple[RatedLine, ...]
    net: Decimal
    taxes: tuple[TaxLine, ...]
    total: Decimal
    kind: InvoiceKind = InvoiceKind.INVOICE
    reverses: str = ""
    number: str = ""
    credits: str = ""
    reason: str = ""
    settled: tuple[Settlement, ...] = ()

    @property
    def due(self) -> Decimal:
        """Amount to pay: the total minus the settlements by credit notes."""
        left = Fraction(self.total) - sum((Fraction(one.amount) for one in self.settled), Fraction(0))
        return rounded(left, self.currency)

    @property
    def empty(self) -> bool:
        """True if no line has a quantity, so that the month has neither use nor commitments."""
        return not any(line.quantity for line in self.lines)


def invoice(lines: Sequence[RatedLine], *, tenant: str, month: str, time_zone: str, period: Period) -> Invoice:
    """Return the draft invoice of rated lines. Each tax is computed on the sum of its lines and rounded once."""
    currency = next((line.currency for line in lines if line.currency), "")
    nets: dict[tuple[str, Decimal], Fraction] = {}
    for line in lines:
        if line.currency:
            tax = line.tax_name, line.tax_percent
            nets[tax] = nets.get(tax, Fraction(0)) + Fraction(line.amount)
    taxes = tuple(
        TaxLine(
            name=name,
            percent=percent,
            net=rounded(net, currency),
            amount=rounded(net * Fraction(percent) / 100, currency),
        )
        for (name, percent), net in sorted(nets.items())
        if percent
    )
    net = sum(nets.values(), Fraction(0))
    total = net + sum((Fraction(tax.amount) for tax in taxes), Fraction(0))
    return Invoice(
        tenant=tenant,
        month=month,
        time_zone=time_zone,
        period=period,
        currency=currency,
        lines=tuple(lines),
        net=rounded(net, currency),
        taxes=taxes,
        total=rounded(total, currency),
    )


def reverse(issued: Invoice) -> Invoice:
    """Return the draft reversal of an issued invoice: the same lines and amounts with opposite signs.

    Raises:
        CalabashError(CONFLICT): the invoice is a draft or a reversal.
    """
    if not issued.number or issued.kind is InvoiceKind.REVERSAL:
        what = f"{issued.number} is a reversal" if issued.number else "a draft was never issued"
        raise CalabashError(
            f"{what} and cannot be reversed", reason=Reason.CONFLICT, hint="see `calabash invoice list`"
        )
    return replace(
        issued,
        kind=InvoiceKind.REVERSAL,
        reverses=issued.number,
        number="",
        lines=tuple(replace(line, quantity=-line.quantity, amount=-line.amount) for line in issued.lines),
        net=-issued.net,
        taxes=tuple(replace(tax, net=-tax.net, amount=-tax.amount) for tax in issued.taxes),
        total=-issued.total,
        settled=tuple(replace(one, amount=-one.amount) for one in issued.settled),
    )
