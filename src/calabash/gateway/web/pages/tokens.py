"""Page of API tokens. Secrets are shown once, when they are created."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.api import tenancy, tenancy_routes
from calabash.gateway.web.lists import matching, part_of
from calabash.gateway.web.pages.page import ConsolePage, Shown, Visit


def listed(tokens: Sequence[tenancy.TokenView], visit: Visit) -> Shown:
    """Return the data of the page: tokens of one kind, valid ones first.

    The kind is ``api`` unless the URL names another, such as ``session`` for sessions of the console.
    """
    kind = visit.query.get("kind", "api")
    shown = sorted((t for t in tokens if t.kind == kind), key=lambda t: (t.state != "valid", -t.created_at))
    facets = {"user": lambda t: t.user, "note": lambda t: t.note, "id": lambda t: t.id, "state": lambda t: t.state}
    return {"part": part_of(matching(shown, visit.query, facets), visit.query, total=len(shown)), "kind": kind}


async def _listed(visit: Visit) -> Shown:
    return listed(await visit.pool.pages(tenancy_routes.LIST_TOKENS), visit)


TOKEN_PAGES = (ConsolePage(path="/tokens", title="Tokens", template="tokens.html", read=_listed, section="tokens"),)
