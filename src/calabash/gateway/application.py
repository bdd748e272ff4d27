"""The gateway's ASGI application: builds its parts, and dispatches to the API, static files and pages."""

from __future__ import annotations

from typing import Any

from calabash.adapters.pool.streams import PoolStreams
from calabash.api import endpoints
from calabash.api.gateway import ConsoleSettings
from calabash.gateway.api.forwarding import Forwarder
from calabash.gateway.api.principals import Principals
from calabash.gateway.api.watch import Watchers
from calabash.gateway.oidc.login import OidcLogin
from calabash.gateway.serving.allowed_hosts import Hosts
from calabash.gateway.serving.rate_limits import Buckets
from calabash.gateway.serving.request_guard import Application, Receive, RequestGuard, Send
from calabash.gateway.serving.static import FOREVER, PREFIX, StaticFiles
from calabash.gateway.sessions.gate import SessionGate
from calabash.gateway.sessions.store import Sessions
from calabash.gateway.site import Site

API = endpoints.ROOT
USER_FACTOR = 2  # default limit of requests for all tokens of a user, as a multiple of the limit of one token


class _Dispatcher:
    def __init__(self, *, api: Application, site: Application, static: StaticFiles) -> None:
        self._api, self._site, self._static = api, site, static

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path == API or path.startswith(f"{API}/"):
            await self._api(scope, receive, send)
        elif path.startswith(PREFIX) and scope["method"] in {"GET", "HEAD"}:
            await self._file(path.removeprefix(PREFIX), scope, send)
        else:
            await self._site(scope, receive, send)

    async def _file(self, name: str, scope: Any, send: Send) -> None:
        found = self._static.find(name)
        content = found.content if found else b""
        headers = [
            (b"content-type", (found.kind if found else "text/plain").encode()),
            (b"content-length", str(len(content)).encode()),
            (b"cache-control", FOREVER.encode() if found else b"no-store"),
        ]
        await send({"type": "http.response.start", "status": 200 if found else 404, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else content})


def gateway_application(
    settings: ConsoleSettings,
    pool: PoolStreams,
    *,
    credential: str,
    sessions: Sessions,
    oidc: OidcLogin | None,
) -> Application:
    """Return the complete application, with the request guard in front.

    Args:
        settings: settings of the console.
        pool: client of the pool.
        credential: credential that the pool has created for this gateway.
        sessions: console sessions, whose keys are derived from ``credential``.
        oidc: login at an OpenID Connect provider; None: not configured.
    """
    limits, static, principals = settings.limits, StaticFiles(start=sessions.start), Principals(pool)
    rate = Buckets(limits.requests_per_second, limits.requests_at_once)
    user_rate = Buckets(
        limits.requests_per_second_per_user or USER_FACTOR * limits.requests_per_second,
        limits.requests_at_once_per_user or USER_FACTOR * limits.requests_at_once,
    )
    site = Site(pool, credential=credential, sessions=sessions, static=static, oidc=oidc)
    dispatcher = _Dispatcher(
        api=Forwarder(
            pool,
            credential=credential,
            principals=principals,
            user_rate=user_rate,
            watchers=Watchers(pool, principals, limits),
        ),
        site=SessionGate(site.application(), sessions, rate),
        static=static,
    )
    return RequestGuard(
        dispatcher,
        hosts=Hosts(settings.hosts),
        proxies=settings.proxies,
        rate=rate,
        refusals=Buckets(limits.refused_per_minute / 60.0, limits.refused_per_minute),
    )
