"""The gateway's ASGI application: dispatch to the API, static files and pages."""

from __future__ import annotations

from typing import Any

from calabash.api import endpoints
from calabash.gateway.api.forwarding import Forwarder
from calabash.gateway.serving.request_guard import Application, Receive, RequestGuard, Send
from calabash.gateway.serving.static import FOREVER, PREFIX
from calabash.gateway.sessions.gate import SessionGate
from calabash.gateway.settings import Gateway
from calabash.gateway.site import Site

API = endpoints.ROOT


class _Dispatcher:
    def __init__(self, gateway: Gateway) -> None:
        self._static = gateway.static
        self._api = Forwarder(gateway)
        self._site = SessionGate(Site(gateway).application(), gateway)

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


def gateway_application(gateway: Gateway) -> Application:
    """Return the complete application, with the request guard in front."""
    return RequestGuard(_Dispatcher(gateway), gateway)
