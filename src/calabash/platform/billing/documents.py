"""Convert tariffs and invoices between the ledger's values, the stored documents and the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import msgspec

from calabash.adapters.store.billing.documents import InvoiceRecord
from calabash.adapters.store.billing.seals import SEAL
from calabash.api import billing
from calabash.ledger import (
    Commitment,
    Invoice,
    InvoiceKind,
    Measure,
    Period,
    Price,
    RatedLine,
    Settlement,
    Tariff,
    Tax,
    TaxLine,
    Tier,
    TimeWindow,
)
from calabash.ledger.calendar import SECOND_US, midnight_us, minute_of_day, zone_of
from calabash.model.errors import CalabashError

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DRAFT = "draft-"


def tariff_of(settings: billing.TariffSettings) -> Tariff:
    """Return the ledger's tariff for the settings. Raises CalabashError that names the invalid setting."""
    zone = zone_of(settings.time_zone)
    return Tariff(
        name=settings.name,
        currency=settings.currency,
        time_zone=settings.time_zone,
        valid_from_us=midnight_us(_day(settings.valid_from), zone),
        valid_to_us=None if settings.valid_to is None else midnight_us(_day(settings.valid_to), zone),
        tenants=tuple(settings.tenants),
        windows=tuple(_window(window) for window in settings.windows),
        prices=tuple(_price(price) for price in settings.prices),
        commitments=tuple(Commitment(of_price=c.of, hours=c.hours, price=c.price) for c in settings.commitments),
        preemptible_discount_percent=settings.preemptible_discount_percent,
        tax=Tax(name=settings.tax.name, percent=settings.tax.percent),
    )


def settings_of(document: Mapping[str, Any]) -> billing.TariffSettings:
    """Return the settings of a stored tariff."""
    return msgspec.convert(dict(document), billing.TariffSettings)


def draft_number(tenant: str, month: str) -> str:
    """Return the identifier of a draft, which has no invoice number yet. ``/`` in the tenant's name becomes ``~``."""
    return f"{_DRAFT}{month}-{tenant.replace('/', '~')}"


def read_draft_number(text: str) -> tuple[str, str] | None:
    """Return tenant and month of a draft's identifier; None for another text."""
    month, rest = text[len(_DRAFT) : len(_DRAFT) + 7], text[len(_DRAFT) + 8 :]
    return (rest.replace("~", "/"), month) if text.startswith(_DRAFT) and rest else None


def record_of(
    invoice: Invoice,
    *,
    seller: Sequence[str] = (),
    at: float = 0.0,
    evidence: Mapping[str, msgspec.Struct] | None = None,
) -> InvoiceRecord:
    """Return the stored form of an invoice.

    Args:
        seller: lines of the seller's name and address.
        at: time of the rating or of the issue, in seconds since the epoch; 0 if the store sets it.
        evidence: digests of the usage records and of the items, under the names USAGE and ITEMS; None for a document
            without evidence, such as a credit note.
    """
    document: dict[str, Any] = msgspec.to_builtins(invoice)
    lines = document.pop("lines")
    if evidence:
        document["evidence"] = msgspec.to_builtins(dict(evidence))
    return InvoiceRecord(
        tenant=invoice.tenant,
        month=invoice.month,
        document=document | {"seller": list(seller)},
        lines=lines,
        kind=invoice.kind.value,
        reverses=invoice.reverses,
        currency=invoice.currency,
        net=str(invoice.net),
        total=str(invoice.total),
        at=at,
    )


def invoice_of(record: InvoiceRecord) -> Invoice:
    """Return the ledger's invoice for a stored record."""
    document = {
        key: value
        for key, value in record.document.items()
        if key not in {"seller", "period", "taxes", "kind", "settled", "evidence", SEAL}
    }
    document |= {"net": Decimal(record.net), "total": Decimal(record.total)}
    return Invoice(
        **document,
        period=msgspec.convert(record.document["period"], Period),
        taxes=msgspec.convert(record.document["taxes"], tuple[TaxLine, ...]),
        kind=InvoiceKind(record.kind),
        settled=_settled(record),
        lines=tuple(msgspec.convert(dict(line), RatedLine) for line in record.lines),
    )


def view_of(record: InvoiceRecord) -> billing.InvoiceView:
    """Return the API's view of a stored invoice or draft."""
    document = record.document
    state = "draft" if not record.number else "void" if record.reversed_by else "issued"
    return billing.InvoiceView(
        number=record.number or draft_number(record.tenant, record.month),
        state=state,
        kind=record.kind,
        tenant=record.tenant,
        month=record.month,
        from_s=document["period"]["from_us"] / SECOND_US,
        to_s=document["period"]["to_us"] / SECOND_US,
        time_zone=document["time_zone"],
        currency=record.currency,
        net=record.net,
        total=record.total,
        taxes=[msgspec.convert(tax, billing.InvoiceTax) for tax in document["taxes"]],
        at=record.at,
        by=record.by,
        reverses=record.reverses,
        reversed_by=record.reversed_by,
        seller=list(document["seller"]),
        seal=document.get(SEAL, ""),
        credits=document.get("credits", ""),
        reason=document.get("reason", ""),
        settled=[msgspec.convert(part, billing.InvoiceSettlement) for part in document.get("settled", ())],
        due=str(invoice_of(replace(record, lines=())).due),
        counted_to_s=min(counted_to_s(record), document["period"]["to_us"] / SECOND_US),
        lines=[_line(msgspec.convert(dict(line), RatedLine)) for line in record.lines],
    )


def counted_to_s(record: InvoiceRecord) -> float:
    """Return the time in seconds up to which usage was complete at the rating; 0 if unknown, as for credit notes."""
    return float(record.document.get("evidence", {}).get("usage", {}).get("counted_to_s", 0.0))


def _settled(record: InvoiceRecord) -> tuple[Settlement, ...]:
    return msgspec.convert(record.document.get("settled", ()), tuple[Settlement, ...])


def _line(line: RatedLine) -> billing.InvoiceLine:
    return billing.InvoiceLine(
        project=line.project,
        measure=line.measure.value,
        model=line.model,
        mode=line.mode,
        preemptible=line.preemptible,
        tariff=line.tariff,
        price=line.price,
        window=line.window,
        tier=line.tier,
        committed=line.committed,
        hours=str(line.hours),
        unit=line.unit,
        unit_price=str(line.unit_price),
        discount_percent=str(line.discount_percent),
        amount=str(line.amount),
    )


def _window(settings: billing.WindowSettings) -> TimeWindow:
    return TimeWindow(
        name=settings.name,
        days=frozenset(_DAYS.index(day) for day in settings.days or _DAYS),
        from_minute=minute_of_day(settings.begin),
        to_minute=minute_of_day(settings.end),
    )


def _price(settings: billing.PriceSettings) -> Price:
    return Price(
        name=settings.name,
        measure=Measure(settings.measure),
        price=settings.price,
        models=tuple(settings.models),
        modes=tuple(settings.modes),
        window=settings.window,
        tiers=tuple(Tier(above_hours=tier.above, price=tier.price) for tier in settings.tiers),
    )


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise CalabashError(f"there is no day {text}", hint="write it like 2026-11-01") from None
