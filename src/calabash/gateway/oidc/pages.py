"""HTTP handlers of a login at the provider."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from calabash.gateway.oidc.login import BACK, BEGIN, END, SESSION, OidcLogin
from calabash.gateway.serving.request_guard import forwarded_for
from calabash.gateway.sessions.login import Logins, decoded_body
from calabash.gateway.sessions.redirects import Seen, local, redirect
from calabash.transport.web.application import Response, json_response
from calabash.transport.web.routing import Handler, get, post

Shown = Callable[[str, Seen, dict[str, Any]], Response]
ENTERED = "entered.html"
Text = Annotated[str, Meta(max_length=4096)]


class AttemptOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Request to begin an attempt to log in; ``to`` is the page to go to afterwards."""

    to: Text = "/"


class AttemptBegun(msgspec.Struct, kw_only=True, frozen=True):
    """Reply with the provider's page to go to, and the ticket that the page keeps until the browser returns."""

    url: str
    ticket: str


class AttemptBack(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Request of the page to which the provider has redirected the browser, with the query of that redirect."""

    ticket: Text
    query: Annotated[dict[Text, Text], Meta(max_length=20)]


class OidcPages:
    """HTTP handlers of a login at one provider.

    Args:
        login: the login at the provider.
        logins: begins sessions of the console.
        show: renders a template.
    """

    def __init__(self, login: OidcLogin, logins: Logins, show: Shown) -> None:
        self._login, self._logins, self._show = login, logins, show

    def handlers(self) -> list[Handler]:
        """Return all handlers."""
        return [
            post(BEGIN)(self.begin),
            get(BACK)(self.back),
            post(SESSION)(self.session),
            get(END)(self.end),
        ]

    async def begin(self, request: Seen) -> Response:
        """Begin an attempt; return its ticket, which the page keeps, and the provider's URL, to which the page goes."""
        order = await decoded_body(request, AttemptOrder)
        url, ticket = await self._login.begin(to=local(order.to), here=_origin(request))
        return json_response(AttemptBegun(url=url, ticket=ticket))

    async def back(self, request: Seen) -> Response:
        """Return the page to which the provider redirects; its script requests the session."""
        return self._show(ENTERED, request, {"page": {"title": "Logging in", "section": ""}})

    async def session(self, request: Seen) -> Response:
        """Exchange the provider's answer for a session."""
        order = await decoded_body(request, AttemptBack)
        wanted, to = await self._login.session_order(order.query, order.ticket, here=_origin(request))
        return await self._logins.begin(wanted, origin=forwarded_for(request.scope), to=local(to))

    async def end(self, request: Seen) -> Response:
        """Redirect to the provider's logout page, or to the login page if the provider has none."""
        return redirect(await self._login.logout_url(here=_origin(request)) or "/login")


def _origin(request: Seen) -> str:
    """Return the origin under which the browser reaches the console; the guard has checked the host."""
    return f"{request.scope['scheme']}://{request.headers.get('host', '')}"
