"""Routes of usage, tariffs and invoices."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from calabash.api import billing, endpoints, requests
from calabash.model import access
from calabash.model.access import Action
from calabash.model.errors import CalabashError, Reason
from calabash.platform.handlers.audit_middleware import concerns
from calabash.platform.handlers.request import Asked, body_of, caller_of, operations_of, work
from calabash.transport.web.routing import handles


@dataclass(frozen=True, slots=True, kw_only=True)
class _BillingVisibility:
    """Invoices and usage that a principal may read.

    Args:
        user: user whose own usage is visible.
        tenants: tenants whose invoices and usage are visible; None: all.
        drafts: drafts are visible too.
    """

    user: str
    tenants: frozenset[str] | None
    drafts: bool

    def require(self, tenant: str, number: str, *, draft: bool) -> None:
        """Raise NOT_FOUND for an invoice or draft that the principal may not read."""
        if (draft and not self.drafts) or (self.tenants is not None and tenant not in self.tenants):
            raise CalabashError(
                f"there is no invoice {number[:80]!r}", reason=Reason.NOT_FOUND, hint="see `calabash invoice list`"
            )


def _visibility_of(request: Asked) -> _BillingVisibility:
    """Return the billing visibility of the requesting principal.

    A principal with the permissions SEE_PLATFORM and SEE_BILLS may read everything. Other principals may read the invoices of
    the tenants for which they have SEE_BILLS, and their own usage. With a token that has no scope to read, nothing is visible.
    """
    who = caller_of(request).principal
    if not access.in_scope(who, Action.SEE):
        return _BillingVisibility(user="", tenants=frozenset(), drafts=False)
    if access.is_allowed(who, Action.SEE_PLATFORM) and access.is_allowed(who, Action.SEE_BILLS):
        return _BillingVisibility(user=who.user, tenants=None, drafts=True)
    theirs = {role.tenant for role in who.roles if access.is_allowed(who, Action.SEE_BILLS, tenant=role.tenant)}
    return _BillingVisibility(user=who.user, tenants=frozenset((theirs | {who.own}) - {""}), drafts=False)


def _manager(request: Asked, what: str) -> str:
    """Return the name of the requesting user. Raises NOT_PERMITTED unless the user may manage tariffs and invoices."""
    who = caller_of(request).principal
    operations_of(request).permission.require(who, Action.MANAGE_BILLS, what)
    return who.user


@handles(endpoints.SHOW_USAGE)
async def usage(request: Asked) -> billing.UsageSums:
    visible = _visibility_of(request)
    asked = requests.decode_query(request.query, billing.UsageQuestion)
    return await work(request, operations_of(request).billing.usage, asked, tenants=visible.tenants, user=visible.user)


@handles(endpoints.LIST_TARIFFS)
async def list_tariffs(request: Asked) -> billing.TariffList:
    who, visible = caller_of(request).principal, _visibility_of(request)
    mine = visible.tenants if visible.tenants is None else visible.tenants | set(access.requestable_tenants(who))
    return billing.TariffList(items=await work(request, operations_of(request).billing.tariffs, tenants=mine))


@handles(endpoints.PUT_TARIFF)
async def put_tariff(request: Asked) -> billing.TariffSettings:
    _manager(request, "change tariffs")
    settings = requests.decode(await body_of(request), billing.TariffSettings)
    await work(request, operations_of(request).billing.put_tariff, settings)
    return settings


@handles(endpoints.LIST_INVOICES)
async def list_invoices(request: Asked) -> billing.InvoiceList:
    visible = _visibility_of(request)
    page = requests.decode_query(request.query, billing.InvoicePage)
    service = operations_of(request).billing
    return await work(request, service.invoices, page, tenants=visible.tenants, drafts=visible.drafts)


@handles(endpoints.DRAFT_INVOICES)
async def draft_invoices(request: Asked) -> billing.InvoiceList:
    _manager(request, "draft invoices")
    order = requests.decode(await body_of(request), billing.InvoiceOrder)
    # A process of its own does the work: no thread of the pool waits for it.
    return await asyncio.wrap_future(operations_of(request).billing.draft(order))


@handles(endpoints.SHOW_INVOICE)
async def show_invoice(request: Asked, number: str) -> billing.InvoiceView:
    visible = _visibility_of(request)
    found = await work(request, operations_of(request).billing.invoice, number)
    visible.require(found.tenant, number, draft=not found.number)
    return await work(request, operations_of(request).billing.view, found)


@handles(endpoints.LIST_INVOICE_ITEMS)
async def invoice_items(request: Asked, number: str) -> billing.InvoiceItems:
    visible, service = _visibility_of(request), operations_of(request).billing
    page = requests.decode_query(request.query, billing.ItemPage)
    found = await work(request, service.invoice, number)
    visible.require(found.tenant, number, draft=not found.number)
    return await work(request, service.items, found, page)


@handles(endpoints.VERIFY_INVOICE)
async def verify_invoice(request: Asked, number: str) -> billing.InvoiceVerdict:
    visible, service = _visibility_of(request), operations_of(request).billing
    if not visible.drafts:
        _manager(request, "verify invoices")
    found = await work(request, service.invoice, number)
    # A process of its own does the work: no thread of the pool waits for it.
    return await asyncio.wrap_future(service.verify(found.number or number))


@handles(endpoints.ISSUE_INVOICE)
async def issue_invoice(request: Asked, number: str) -> billing.InvoiceView:
    by = _manager(request, "issue invoices")
    requests.decode(await body_of(request), requests.Nothing)
    return await work(request, operations_of(request).billing.issue, number, by=by)


@handles(endpoints.CREDIT_INVOICE)
async def credit_invoice(request: Asked, number: str) -> billing.InvoiceView:
    by = _manager(request, "credit invoices")
    order, service = requests.decode(await body_of(request), billing.CreditOrder), operations_of(request).billing
    concerns(request, f"{order.amount}: {order.reason}")
    note = await work(request, service.credit, number, order, by=by)
    concerns(request, f"{note.number} {note.net} {note.currency}: {note.reason}", tenant=note.tenant)
    return note


@handles(endpoints.VOID_INVOICE)
async def void_invoice(request: Asked, number: str) -> billing.InvoiceView:
    by = _manager(request, "take invoices back")
    requests.decode(await body_of(request), requests.Nothing)
    return await work(request, operations_of(request).billing.void, number, by=by)


BILLING = (
    usage,
    list_tariffs,
    put_tariff,
    list_invoices,
    draft_invoices,
    show_invoice,
    invoice_items,
    verify_invoice,
    issue_invoice,
    credit_invoice,
    void_invoice,
)
