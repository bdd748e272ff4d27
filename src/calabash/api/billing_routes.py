"""Routes of usage, tariffs and invoices."""

from __future__ import annotations

from calabash.api import billing, requests
from calabash.api.route import Route

BILLING = (
    Route(
        method="GET",
        path="/v1/usage",
        summary="Sum the usage between two times, grouped as requested",
        reply=billing.UsageSums,
        query=billing.UsageQuestion,
        note="usage of tenants that the requesting user administers; otherwise only the user's own usage",
    ),
    Route(method="GET", path="/v1/tariffs", summary="List tariffs", reply=billing.TariffList),
    Route(
        method="PUT",
        path="/v1/tariffs",
        summary="Create a tariff, or replace the one with the same name and first day",
        reply=billing.TariffSettings,
        body=billing.TariffSettings,
        administrators=True,
        note="issued invoices do not change",
    ),
    Route(
        method="GET",
        path="/v1/invoices",
        summary="List invoices: drafts first, then issued invoices by number",
        reply=billing.InvoiceList,
        query=billing.InvoicePage,
        note="tenants see only invoices that were issued to them",
    ),
    Route(
        method="POST",
        path="/v1/invoices",
        summary="Rate a month and create drafts, which replace earlier drafts",
        reply=billing.InvoiceList,
        body=billing.InvoiceOrder,
        status=201,
        administrators=True,
        note="creates drafts for all tenants with use or a commitment in the month; `failed` lists tenants that could not be"
        " rated",
    ),
    Route(
        method="GET", path="/v1/invoices/{number}", summary="Get an invoice with its lines", reply=billing.InvoiceView
    ),
    Route(
        method="GET",
        path="/v1/invoices/{number}/items",
        summary="List the items of an invoice or draft: use by allocation",
        reply=billing.InvoiceItems,
        query=billing.ItemPage,
        note="for users who may see the invoice; the amounts add up to its net amount",
    ),
    Route(
        method="GET",
        path="/v1/invoices/{number}/verify",
        summary="Verify an issued invoice, its items and its usage records with its seal",
        reply=billing.InvoiceVerdict,
        note="for administrators and users who may see the invoices of all tenants",
    ),
    Route(
        method="POST",
        path="/v1/invoices/{number}/issue",
        summary="Issue a draft as an invoice with the next number",
        reply=billing.InvoiceView,
        body=requests.Nothing,
        administrators=True,
        note="409 before the end of the month, for a draft that was made before the end of the month, for an empty draft or one"
        " without a tariff, and if the month is already invoiced",
    ),
    Route(
        method="POST",
        path="/v1/invoices/{number}/credit",
        summary="Create a numbered credit note for a net amount of an invoice, and return it",
        reply=billing.InvoiceView,
        body=billing.CreditOrder,
        status=201,
        administrators=True,
        note="it pays the next invoices of the tenant; 400 for more than the net amount of the invoice",
    ),
    Route(
        method="POST",
        path="/v1/invoices/{number}/void",
        summary="Reverse an invoice, and return the reversal; delete a draft",
        reply=billing.InvoiceView,
        body=requests.Nothing,
        administrators=True,
        note="the reversal has all lines of the invoice with opposite signs; the invoice itself does not change",
    ),
)
