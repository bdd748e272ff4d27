"""Routes of the audit log."""

from __future__ import annotations

from calabash.api import audit as shapes
from calabash.api.route import Route

AUDIT = (
    Route(
        method="GET",
        path="/v1/audit",
        summary="List lines of the audit log",
        reply=shapes.AuditList,
        query=shapes.AuditPage,
        note="the administrator of a tenant sees the lines of that tenant",
    ),
    Route(
        method="GET",
        path="/v1/audit/verify",
        summary="Verify the hash chain of the audit log",
        reply=shapes.AuditVerdict,
    ),
)
