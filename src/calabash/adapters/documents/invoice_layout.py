"""What stands on an invoice, whatever it is written as: head, rows, sums."""

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
    """The texts of an invoice. ``rows`` have a cell for each of ``HEADINGS``; ``sums`` are words and amounts."""

    title: str
    seller: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, ...], ...]
    sums: tuple[tuple[str, str], ...]


def layout(bill: InvoiceView) -> InvoiceLayout:
    """The texts of that invoice or draft."""
    zone = ZoneInfo(bill.time_zone)
    first = datetime.fromtimestamp(bill.from_s, zone)
    last = datetime.fromtimestamp(bill.to_s, zone) - timedelta(seconds=1)
    facts = [("Tenant", bill.tenant), ("Period", f"{first:%Y-%m-%d} to {last:%Y-%m-%d} ({bill.time_zone})")]
    if bill.state == "draft":
        facts.append(("State", "draft: not an invoice"))
        if bill.counted_to_s:
            counted_to = datetime.fromtimestamp(bill.counted_to_s, zone)
            facts.append(("Usage counted up to", f"{counted_to:%Y-%m-%d %H:%M:%S}"))
    else:
        facts.append(("Date", f"{datetime.fromtimestamp(bill.at, zone):%Y-%m-%d}"))
    if bill.credits:
        facts += [("Credits invoice", bill.credits), ("Reason", bill.reason)]
    if bill.reverses:
        facts.append(("Takes back", bill.reverses))
    if bill.reversed_by:
        facts.append(("Taken back by", bill.reversed_by))
    if bill.seal:
        facts.append(("Seal", bill.seal))
    sums = [("Net", bill.net), *((f"{tax.name} {tax.percent} %", tax.amount) for tax in bill.taxes)]
    return InvoiceLayout(
        title=_title(bill),
        seller=tuple(bill.seller),
        facts=tuple(facts),
        rows=tuple(_row(line) for line in bill.lines),
        sums=(*sums, (f"Total {bill.currency}".strip(), bill.total), *_due(bill)),
    )


def _due(bill: InvoiceView) -> list[tuple[str, str]]:
    """The credit notes that an invoice is paid with, and what is left to pay; nothing without them."""
    if not bill.settled:
        return []
    parts = [(f"Credit note {one.number}, {one.reason}", _negative(one.amount)) for one in bill.settled]
    return [*parts, (f"Amount due {bill.currency}".strip(), bill.due)]


def _negative(amount: str) -> str:
    return amount[1:] if amount.startswith("-") else f"-{amount}"


def _title(bill: InvoiceView) -> str:
    if bill.state == "draft":
        return f"Draft for {bill.month}"
    return f"{_TITLES.get(bill.kind, 'Invoice')} {bill.number}"


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
