"""Routes of the audit log."""

from __future__ import annotations

from calabash.api import audit as shapes
from calabash.api.route import Route

AUDIT = (
    Route(
        method="GET",
        path="/v1/audit",
        summary="who did what from where",
        reply=shapes.AuditList,
        query=shapes.AuditPage,
        note="the administrator of a tenant sees the lines of that tenant",
    ),
    Route(
        method="GET",
        path="/v1/audit/verify",
        summary="whether the log is what was written",
        reply=shapes.AuditVerdict,
    ),
)
