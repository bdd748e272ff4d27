"""Rated lines to an invoice, and an invoice to the one that takes it back. An invoice is a value: it never changes."""

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
    """An invoice, a credit note for one, or the reversal of either."""

    INVOICE = "invoice"
    CREDIT = "credit"
    REVERSAL = "reversal"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaxLine:
    """The tax on all lines that have it."""

    name: str
    percent: Decimal
    net: Decimal
    amount: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The part of a credit note that an invoice is paid with; ``amount`` is with tax, and above 0."""

    number: str
    reason: str
    amount: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoice:
    """Invoice of one tenant for one month; amounts are in ``currency``.

    ``reverses`` is the number of the invoice that a reversal takes back, ``credits`` that of the invoice that a credit note is
    for, with its ``reason``. ``settled`` are the credit notes that the invoice is paid with. ``number`` empty: not issued.
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
        """The amount to pay: the total without what credit notes settle."""
        left = Fraction(self.total) - sum((Fraction(one.amount) for one in self.settled), Fraction(0))
        return rounded(left, self.currency)

    @property
    def empty(self) -> bool:
        """True if no line has a quantity: no use in the month and no commitment."""
        return not any(line.quantity for line in self.lines)


def invoice(lines: Sequence[RatedLine], *, tenant: str, month: str, time_zone: str, period: Period) -> Invoice:
    """The sum of the lines, and each tax on the sum of those that have it, rounded once."""
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
    """An invoice that takes an issued one back: line by line the same with the other sign.

    Raises CalabashError for one that is not issued, or is a reversal itself.
    """
    if not issued.number or issued.kind is InvoiceKind.REVERSAL:
        what = f"{issued.number} is a reversal" if issued.number else "a draft was never issued"
        raise CalabashError(
            f"{what} and cannot be taken back", reason=Reason.CONFLICT, hint="see `calabash invoice list`"
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
