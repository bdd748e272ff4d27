"""Texts of an invoice (head, rows, sums) for all document formats."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from calabash.api.billing import InvoiceLine, InvoiceView

HEADINGS = ("Project", "What", "Hours", "Unit", "Price", "Amount")
_WORDS = {
    "guaranteed": "guaranteed",
    "borrowed": "borrowed",
    "memory": "memory",
    "busy": "measured work",
    "idle": "held and idle",
    "commitment": "commitment",
    "credit": "credit",
}
_TITLES = {"reversal": "Reversal", "credit": "Credit note"}


@dataclass(frozen=True, slots=True, kw_only=True)
class InvoiceLayout:
    """Texts of an invoice.

    Args:
        title: kind and number of the invoice.
        seller: lines of the seller's address.
        facts: pairs of a name and a text, such as tenant, period and date.
        rows: lines of the invoice, with a cell for each of ``HEADINGS``.
        sums: pairs of a name and an amount.
    """

    title: str
    seller: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, ...], ...]
    sums: tuple[tuple[str, str], ...]


def layout(invoice: InvoiceView) -> InvoiceLayout:
    """Return the texts of an invoice or draft."""
    zone = ZoneInfo(invoice.time_zone)
    first = datetime.fromtimestamp(invoice.from_s, zone)
    last = datetime.fromtimestamp(invoice.to_s, zone) - timedelta(seconds=1)
    facts = [("Tenant", invoice.tenant), ("Period", f"{first:%Y-%m-%d} to {last:%Y-%m-%d} ({invoice.time_zone})")]
    if invoice.state == "draft":
        facts.append(("State", "draft: not an invoice"))
        if invoice.counted_to_s:
            counted_to = datetime.fromtimestamp(invoice.counted_to_s, zone)
            facts.append(("Usage counted up to", f"{counted_to:%Y-%m-%d %H:%M:%S}"))
    else:
        facts.append(("Date", f"{datetime.fromtimestamp(invoice.at, zone):%Y-%m-%d}"))
    if invoice.credits:
        facts += [("Credits invoice", invoice.credits), ("Reason", invoice.reason)]
    if invoice.reverses:
        facts.append(("Takes back", invoice.reverses))
    if invoice.reversed_by:
        facts.append(("Taken back by", invoice.reversed_by))
    if invoice.seal:
        facts.append(("Seal", invoice.seal))
    sums = [("Net", invoice.net), *((f"{tax.name} {tax.percent} %", tax.amount) for tax in invoice.taxes)]
    return InvoiceLayout(
        title=_title(invoice),
        seller=tuple(invoice.seller),
        facts=tuple(facts),
        rows=tuple(_row(line) for line in invoice.lines),
        sums=(*sums, (f"Total {invoice.currency}".strip(), invoice.total), *_due(invoice)),
    )


def _due(invoice: InvoiceView) -> list[tuple[str, str]]:
    """Return pairs of text and amount: the invoice's credit notes, then the amount due; [] without credit notes."""
    if not invoice.settled:
        return []
    parts = [(f"Credit note {one.number}, {one.reason}", _negative(one.amount)) for one in invoice.settled]
    return [*parts, (f"Amount due {invoice.currency}".strip(), invoice.due)]


def _negative(amount: str) -> str:
    return amount[1:] if amount.startswith("-") else f"-{amount}"


def _title(invoice: InvoiceView) -> str:
    if invoice.state == "draft":
        return f"Draft for {invoice.month}"
    return f"{_TITLES.get(invoice.kind, 'Invoice')} {invoice.number}"


def _row(line: InvoiceLine) -> tuple[str, ...]:
    words = [line.model, line.mode, _WORDS.get(line.measure, line.measure)]
    if line.window:
        words.append(line.window)
    if line.tier:
        words.append(f"tier {line.tier + 1}")
    if line.committed:
        words.append("within the commitment")
    if line.preemptible:
        discount = f", {line.discount_percent} % off" if line.discount_percent not in {"0", ""} else ""
        words.append(f"preemptible{discount}")
    if not line.price and line.measure != "credit":
        words.append("no price" if line.tariff else "no tariff")
    return (line.project, ", ".join(filter(None, words)), line.hours, line.unit, line.unit_price, line.amount)
