"""The addresses of a login at the provider, as handlers of the site."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from msgspec import Meta

from calabash.gateway.oidc.login import BACK, BEGIN, END, SESSION, OidcLogin
from calabash.gateway.serving.request_guard import forwarded_for
from calabash.gateway.sessions.login import Logins, decoded_body, json_reply
from calabash.gateway.sessions.redirects import Seen, local, redirect

Shown = Callable[[str, Seen, dict[str, Any]], Response[str]]
ENTERED = "entered.html"
Text = Annotated[str, Meta(max_length=4096)]


class AttemptOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """An attempt to log in is to begin; ``to``: the page to go to afterwards."""

    to: Text = "/"


class AttemptBegun(msgspec.Struct, kw_only=True, frozen=True):
    """The provider's page to go to, and what the page keeps until it comes back."""

    url: str
    ticket: str


class AttemptBack(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The browser is back from the provider, with this query."""

    ticket: Text
    query: Annotated[dict[Text, Text], Meta(max_length=20)]


class OidcPages:
    """``show`` makes a page of a template."""

    def __init__(self, login: OidcLogin, logins: Logins, show: Shown) -> None:
        self._login, self._logins, self._show = login, logins, show

    def handlers(self) -> list[HTTPRouteHandler]:
        """Return all handlers."""
        return [
            post(BEGIN, status_code=200)(self.begin),
            get(BACK)(self.back),
            post(SESSION, status_code=200)(self.session),
            get(END)(self.end),
        ]

    async def begin(self, request: Seen) -> Response[bytes]:
        """Begin an attempt; the page keeps its ticket and goes to the provider."""
        order = await decoded_body(request, AttemptOrder)
        url, ticket = await self._login.away(to=local(order.to), here=_origin(request))
        return json_reply(AttemptBegun(url=url, ticket=ticket))

    async def back(self, request: Seen) -> Response[str]:
        """Return the page that the provider leads back to; its script asks for the session."""
        return self._show(ENTERED, request, {"page": {"title": "Logging in", "section": ""}})

    async def session(self, request: Seen) -> Response[bytes]:
        """Exchange the provider's answer for a session."""
        order = await decoded_body(request, AttemptBack)
        wanted, to = await self._login.identified(order.query, order.ticket, here=_origin(request))
        return await self._logins.begin(wanted, origin=forwarded_for(request.scope), to=local(to))

    async def end(self, request: Seen) -> Response[str]:
        """Lead to the provider's own page for logging out."""
        return redirect(await self._login.end(here=_origin(request)) or "/login")


def _origin(request: Seen) -> str:
    """Return where this browser finds the console; the guard has checked the host."""
    return f"{request.scope['scheme']}://{request.headers.get('host', '')}"
