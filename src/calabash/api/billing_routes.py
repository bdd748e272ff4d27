"""Routes of usage, tariffs and invoices."""

from __future__ import annotations

from typing import Any

from calabash.api import billing, endpoints, requests
from calabash.api.route import Route

SHOW_USAGE = Route(
    endpoint=endpoints.SHOW_USAGE,
    summary="Sum the usage between two times, grouped as requested",
    reply=billing.UsageSums,
    query=billing.UsageQuestion,
    note="usage of tenants that the requesting user administers; otherwise only the user's own usage",
)
LIST_TARIFFS = Route(
    endpoint=endpoints.LIST_TARIFFS,
    summary="List tariffs",
    reply=billing.TariffList,
)
PUT_TARIFF = Route(
    endpoint=endpoints.PUT_TARIFF,
    summary="Create a tariff, or replace the one with the same name and first day",
    reply=billing.TariffSettings,
    body=billing.TariffSettings,
    administrators=True,
    note="issued invoices do not change",
)
LIST_INVOICES = Route(
    endpoint=endpoints.LIST_INVOICES,
    summary="List invoices: drafts first, then issued invoices by number",
    reply=billing.InvoiceList,
    query=billing.InvoicePage,
    note="tenants see only invoices that were issued to them",
)
DRAFT_INVOICES = Route(
    endpoint=endpoints.DRAFT_INVOICES,
    summary="Rate a month and create drafts, which replace earlier drafts",
    reply=billing.InvoiceList,
    body=billing.InvoiceOrder,
    administrators=True,
    note="creates drafts for all tenants with use or a commitment in the month; `failed` lists tenants that could not be"
    " rated",
)
SHOW_INVOICE = Route(
    endpoint=endpoints.SHOW_INVOICE,
    summary="Get an invoice with its lines",
    reply=billing.InvoiceView,
)
LIST_INVOICE_ITEMS = Route(
    endpoint=endpoints.LIST_INVOICE_ITEMS,
    summary="List the items of an invoice or draft: use by allocation",
    reply=billing.InvoiceItems,
    query=billing.ItemPage,
    note="for users who may see the invoice; the amounts add up to its net amount",
)
VERIFY_INVOICE = Route(
    endpoint=endpoints.VERIFY_INVOICE,
    summary="Verify an issued invoice, its items and its usage records with its seal",
    reply=billing.InvoiceVerdict,
    note="for administrators and users who may see the invoices of all tenants",
)
ISSUE_INVOICE = Route(
    endpoint=endpoints.ISSUE_INVOICE,
    summary="Issue a draft as an invoice with the next number",
    reply=billing.InvoiceView,
    body=requests.Nothing,
    administrators=True,
    note="409 before the end of the month, for a draft that was made before the end of the month, for an empty draft or one"
    " without a tariff, and if the month is already invoiced",
)
CREDIT_INVOICE = Route(
    endpoint=endpoints.CREDIT_INVOICE,
    summary="Create a numbered credit note for a net amount of an invoice, and return it",
    reply=billing.InvoiceView,
    body=billing.CreditOrder,
    administrators=True,
    note="it pays the next invoices of the tenant; 400 for more than the net amount of the invoice",
)
VOID_INVOICE = Route(
    endpoint=endpoints.VOID_INVOICE,
    summary="Reverse an invoice, and return the reversal; delete a draft",
    reply=billing.InvoiceView,
    body=requests.Nothing,
    administrators=True,
    note="the reversal has all lines of the invoice with opposite signs; the invoice itself does not change",
)

BILLING: tuple[Route[Any], ...] = (
    SHOW_USAGE,
    LIST_TARIFFS,
    PUT_TARIFF,
    LIST_INVOICES,
    DRAFT_INVOICES,
    SHOW_INVOICE,
    LIST_INVOICE_ITEMS,
    VERIFY_INVOICE,
    ISSUE_INVOICE,
    CREDIT_INVOICE,
    VOID_INVOICE,
)
