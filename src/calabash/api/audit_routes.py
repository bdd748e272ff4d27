"""Routes of the audit log."""

from __future__ import annotations

from typing import Any

from calabash.api import audit as shapes
from calabash.api import endpoints
from calabash.api.route import Route

LIST_AUDIT = Route(
    endpoint=endpoints.LIST_AUDIT,
    summary="List lines of the audit log",
    reply=shapes.AuditList,
    query=shapes.AuditPage,
    note="the administrator of a tenant sees the lines of that tenant",
)
VERIFY_AUDIT = Route(
    endpoint=endpoints.VERIFY_AUDIT,
    summary="Verify the hash chain of the audit log",
    reply=shapes.AuditVerdict,
)

AUDIT: tuple[Route[Any], ...] = (
    LIST_AUDIT,
    VERIFY_AUDIT,
)
