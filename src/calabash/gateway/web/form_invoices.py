"""Forms of tariffs and invoices."""

from __future__ import annotations

from typing import Any

from calabash.api import endpoints
from calabash.gateway.web.forms import Form, decimal, text

_MEASURES = ("guaranteed", "borrowed", "memory")


def _tariff(read: dict[str, Any]) -> dict[str, Any]:
    """Return the request body for a tariff, with a price for each measure that the user has filled in.

    Amounts remain text, because a floating-point number would round them.
    """
    prices = [{"name": m, "measure": m, "price": read[m]} for m in _MEASURES if m in read]
    tax = {"tax": {"name": "tax", "percent": read["tax"]}} if "tax" in read else {}
    rest = {name: value for name, value in read.items() if name not in (*_MEASURES, "tax")}
    return {**rest, "prices": prices, **tax}


def amount(value: str) -> str:
    """Check that the value is a decimal number and return it as text. Raises CalabashError if it is not."""
    decimal(value)
    return value.strip()


INVOICES = (
    Form(
        name="tariff",
        needs="manage-bills",
        endpoint=endpoints.PUT_TARIFF,
        fields={"name": text, "currency": text, "valid_from": text, **dict.fromkeys((*_MEASURES, "tax"), amount)},
        shaped=_tariff,
        back="/tariffs",
        said="Tariff {name} saved.",
    ),
    Form(
        name="invoice-draft",
        needs="manage-bills",
        endpoint=endpoints.DRAFT_INVOICES,
        fields={"month": text, "tenant": text},
        back="/invoices",
        said="Drafts for {month} created.",
    ),
    Form(
        name="invoice-issue",
        needs="manage-bills",
        endpoint=endpoints.ISSUE_INVOICE,
        back="/invoices/{number}",
        said="Issued as invoice {number}.",
    ),
    Form(
        name="invoice-credit",
        needs="manage-bills",
        endpoint=endpoints.CREDIT_INVOICE,
        fields={"amount": amount, "reason": text},
        back="/invoices/{number}",
        said="Credit note {number} issued.",
    ),
    Form(
        name="invoice-void",
        needs="manage-bills",
        endpoint=endpoints.VOID_INVOICE,
        back="/invoices",
        said="Invoice voided or draft deleted.",
    ),
)
