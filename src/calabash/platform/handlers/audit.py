"""Routes of the audit log."""

from __future__ import annotations

from dataclasses import asdict

from calabash.api import audit as shapes
from calabash.api import endpoints, requests
from calabash.model.access import Action, is_allowed
from calabash.model.audit import AuditLine
from calabash.model.errors import CalabashError, Reason
from calabash.platform.handlers.request import Asked, caller_of, operations_of, work
from calabash.transport.web.routing import handles


@handles(endpoints.LIST_AUDIT)
async def list_audit(request: Asked) -> shapes.AuditList:
    """Return a page of audit lines. Raises NOT_PERMITTED if the principal may read no audit lines."""
    who = caller_of(request).principal
    page = requests.decode_query(request.query, shapes.AuditPage)
    tenants = None
    if not is_allowed(who, Action.SEE_AUDIT):
        tenants = {r.tenant for r in who.roles if r.tenant and is_allowed(who, Action.SEE_AUDIT, tenant=r.tenant)}
        if not tenants:
            raise CalabashError(
                f"user {who.user} may not see the audit log",
                reason=Reason.NOT_PERMITTED,
                hint="administrators of a tenant may read the lines of their tenant, administrators of the pool all lines",
            )
    lines = await work(
        request,
        operations_of(request).store.audit.lines,
        after=page.after or 0,
        limit=page.limit,
        tenants=tenants,
        newest=page.after is None,
    )
    return shapes.AuditList(items=[_shown(line) for line in lines])


@handles(endpoints.VERIFY_AUDIT)
async def verify_audit(request: Asked) -> shapes.AuditVerdict:
    who, operations = caller_of(request).principal, operations_of(request)
    operations.permission.require(who, Action.SEE_AUDIT, "verify the audit log")
    last, wrong = await work(request, operations.audit.verify)
    return shapes.AuditVerdict(whole=not wrong, last=last.id, wrong=wrong)


def _shown(line: AuditLine) -> shapes.AuditView:
    values = asdict(line)
    del values["seal"]
    return shapes.AuditView(**values)


AUDIT = (list_audit, verify_audit)
