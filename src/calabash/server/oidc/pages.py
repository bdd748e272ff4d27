"""The three addresses of a login at the provider, as handlers of the site."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from calabash.server.credentials import session_cookie
from calabash.server.going import Seen, go, local, next_of
from calabash.server.guard import headers_of
from calabash.server.oidc.attempt import cookie_of_attempt
from calabash.server.oidc.login import BACK, BEGIN, END, OidcLogin

Shown = Callable[[str, Seen, dict[str, Any]], Response[str]]
ENTERED = "entered.html"


class OidcPages:
    """``show`` makes a page of a template."""

    def __init__(self, login: OidcLogin, show: Shown) -> None:
        self._login, self._show = login, show

    def handlers(self) -> list[HTTPRouteHandler]:
        """All three."""
        return [get(BEGIN)(self.begin), get(BACK)(self.back), get(END)(self.end)]

    async def begin(self, request: Seen) -> Response[str]:
        """Off to the provider."""
        to, attempt = await self._login.away(to=next_of(request), here=_origin(request))
        return go(request, to, {"set-cookie": self._login.cookie(attempt, secure=_secure(request))})

    async def back(self, request: Seen) -> Response[str]:
        """Back from the provider: a session, and a page that leads on."""
        secret, to = await self._login.session(
            dict(request.query_params), headers_of(request.scope), here=_origin(request), secure=_secure(request)
        )
        shown = self._show(ENTERED, request, {"page": {"title": "Logged in", "section": ""}, "to": local(to)})
        secure = _secure(request)
        shown.headers["set-cookie"] = session_cookie(secret, secure=secure)
        shown.set_cookie(
            cookie_of_attempt(secure=secure), "", max_age=0, path="/", secure=secure, httponly=True, samesite="lax"
        )
        return shown

    async def end(self, request: Seen) -> Response[str]:
        """To the provider's own page for logging out."""
        return go(request, await self._login.end(here=_origin(request)) or "/login")


def _secure(request: Seen) -> bool:
    return bool(request.scope["scheme"] == "https")


def _origin(request: Seen) -> str:
    """Where this browser finds the console; the guard has looked at the host."""
    return f"{request.scope['scheme']}://{request.headers.get('host', '')}"
