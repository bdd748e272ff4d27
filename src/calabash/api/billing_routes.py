"""Routes of usage, tariffs and invoices."""

from __future__ import annotations

from calabash.api import billing, requests
from calabash.api.route import Route

BILLING = (
    Route(
        method="GET",
        path="/v1/usage",
        summary="hours used between two moments, summed as asked",
        reply=billing.UsageSums,
        query=billing.UsageQuestion,
        note="of the tenants that one administers; otherwise only what one used oneself",
    ),
    Route(method="GET", path="/v1/tariffs", summary="all tariffs", reply=billing.TariffList),
    Route(
        method="PUT",
        path="/v1/tariffs",
        summary="creates a tariff, or replaces the one of that name and first day",
        reply=billing.TariffSettings,
        body=billing.TariffSettings,
        administrators=True,
        note="issued invoices stay as they are",
    ),
    Route(
        method="GET",
        path="/v1/invoices",
        summary="invoices by number, before them drafts",
        reply=billing.InvoiceList,
        query=billing.InvoicePage,
        note="tenants see what was issued to them",
    ),
    Route(
        method="POST",
        path="/v1/invoices",
        summary="rates a month, for drafts that replace earlier ones",
        reply=billing.InvoiceList,
        body=billing.InvoiceOrder,
        status=201,
        administrators=True,
        note="drafts all tenants with use or a commitment in the month; `failed` names those that could not be rated",
    ),
    Route(method="GET", path="/v1/invoices/{number}", summary="one invoice with its lines", reply=billing.InvoiceView),
    Route(
        method="GET",
        path="/v1/invoices/{number}/items",
        summary="the itemised use of an invoice or a draft, by allocation",
        reply=billing.InvoiceItems,
        query=billing.ItemPage,
        note="for those who see the invoice; the amounts add up to its net amount",
    ),
    Route(
        method="GET",
        path="/v1/invoices/{number}/verify",
        summary="checks an issued invoice, its items and its usage records against its seal",
        reply=billing.InvoiceVerdict,
        note="for administrators and those who see the bills of all tenants",
    ),
    Route(
        method="POST",
        path="/v1/invoices/{number}/issue",
        summary="a draft becomes an invoice with the next number",
        reply=billing.InvoiceView,
        body=requests.Nothing,
        administrators=True,
        note="409 before the month is over, for a draft from before that, for an empty draft or one without a tariff, and"
        " where the month is invoiced already",
    ),
    Route(
        method="POST",
        path="/v1/invoices/{number}/credit",
        summary="credits an invoice with a net amount, by a credit note with a number of its own, which it answers",
        reply=billing.InvoiceView,
        body=billing.CreditOrder,
        status=201,
        administrators=True,
        note="the next invoices of the tenant are paid with it; 400 for more than the net amount of the invoice",
    ),
    Route(
        method="POST",
        path="/v1/invoices/{number}/void",
        summary="takes an invoice back by one with all its lines reversed, which it answers; deletes a draft",
        reply=billing.InvoiceView,
        body=requests.Nothing,
        administrators=True,
        note="the invoice keeps its number and stays as it is",
    ),
)
