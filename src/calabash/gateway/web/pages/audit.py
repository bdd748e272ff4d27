"""Page of the audit log, newest first, with the verification of its hash chain."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.api import audit, audit_routes
from calabash.gateway.web.lists import choices, matching, part_of
from calabash.gateway.web.pages.page import ConsolePage, Shown, Visit
from calabash.model.errors import CalabashError

FACETS = {
    "user": lambda a: a.user,
    "action": lambda a: a.action,
    "tenant": lambda a: a.tenant,
    "target": lambda a: a.target,
    "origin": lambda a: a.origin,
    "reason": lambda a: a.reason,
}


def listed(lines: Sequence[audit.AuditView], verdict: audit.AuditVerdict | None, visit: Visit) -> Shown:
    """Return the data of the page; with ``refused`` in the URL only refused requests are shown."""
    shown = sorted(lines, key=lambda line: -line.id)
    if visit.query.get("refused"):
        shown = [line for line in shown if line.outcome >= 400]
    return {
        "part": part_of(matching(shown, visit.query, FACETS), visit.query, total=len(lines)),
        "users": choices(lines, FACETS["user"]),
        "actions": choices(lines, FACETS["action"]),
        "verdict": verdict,
        "oldest": min((line.id for line in lines), default=0),
    }


async def _listed(visit: Visit) -> Shown:
    after = visit.query.get("after", "")
    asked = {"after": after} if after.isascii() and after.isdigit() and len(after) < 18 else {}
    lines = (await visit.pool.get(audit_routes.LIST_AUDIT, query=asked)).items
    verdict = None
    if visit.query.get("verify"):
        try:
            verdict = await visit.pool.get(audit_routes.VERIFY_AUDIT)
        except CalabashError:
            verdict = None  # a principal that sees a part of the log cannot verify the chain
    return listed(lines, verdict, visit)


AUDIT_PAGES = (
    ConsolePage(path="/audit", title="Audit", template="audit.html", read=_listed, section="audit", needs="see-audit"),
)
