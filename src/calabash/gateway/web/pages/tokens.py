"""Tokens: what programs log in with. Their secrets are shown once, when they are made."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.api import tenancy
from calabash.gateway.web.lists import matching, part_of
from calabash.gateway.web.pages.page import ConsolePage, Shown, Visit


def listed(tokens: Sequence[tenancy.TokenView], visit: Visit) -> Shown:
    """Those of the API that are still good first; sessions of the console only when the URL asks for them."""
    kind = visit.query.get("kind", "api")
    shown = sorted((t for t in tokens if t.kind == kind), key=lambda t: (t.state != "valid", -t.created_at))
    facets = {"user": lambda t: t.user, "note": lambda t: t.note, "id": lambda t: t.id, "state": lambda t: t.state}
    return {"part": part_of(matching(shown, visit.query, facets), visit.query, total=len(shown)), "kind": kind}


async def _listed(visit: Visit) -> Shown:
    return listed(await visit.pool.pages("/v1/tokens", tenancy.TokenList), visit)


TOKEN_PAGES = (ConsolePage(path="/tokens", title="Tokens", template="tokens.html", read=_listed, section="tokens"),)
