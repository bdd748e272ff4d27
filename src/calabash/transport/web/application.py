"""ASGI application that calls the handler of each request, on Starlette's requests and responses.

Starlette's own router is not used: it would compare each request with some fifty patterns, answer HEAD as GET, and
redirect paths that end in a slash. Middleware, sizes of bodies and time limits are the servers' own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from starlette import requests
from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from calabash.transport.web.routing import JSON, Handler, RouteTable, normalized

__all__ = ["HTTPException", "Request", "Response", "State", "WebApplication", "json_response"]

# Characters of a host and a port in a URL.
_HOST = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~!$&'()*+,;=:@%[]"


class Request(requests.Request):
    """HTTP request."""

    @property
    def query(self) -> dict[str, str]:
        """Decoded parameters of the query string; of several with one name, the first."""
        found: dict[str, str] = {}
        for name, value in self.query_params.multi_items():
            found.setdefault(name, value)
        return found


class WebApplication:
    """ASGI application with a table of handlers.

    A path with a slash at its end, or with empty segments, is served as the path without them. OPTIONS is answered for
    every path that has a handler.

    Args:
        handlers: the handlers.
        failed: returns the response for an error of a handler. An unknown path, a method without a handler, an invalid
            Host header and a body that ends early are an ``HTTPException``.
        before: called before each handler, and may raise an error.
        state: values of the application's state.
    """

    def __init__(
        self,
        handlers: Sequence[Handler],
        *,
        failed: Callable[[Request, Exception], Response],
        before: Callable[[Request], Awaitable[None]] | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self.state = State(dict(state or {}))
        self._routes = RouteTable(handlers)
        self._failed, self._before = failed, before

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope["app"] = self
        scope.setdefault("state", {})
        request = Request(scope, receive)
        try:
            response = await self._response(request)
        except ClientDisconnect:
            response = self._failed(request, HTTPException(400, "the client disconnected before the end of the body"))
        except Exception as error:
            response = self._failed(request, error)
        await response(scope, receive, send)

    async def _response(self, request: Request) -> Response:
        scope = request.scope
        _require_valid_host(scope["headers"])
        path, method = normalized(scope["path"]), scope["method"]
        found = self._routes.find(path)
        if found is None:
            raise HTTPException(404)
        handler = found.methods.get(method)
        if handler is None and method != "OPTIONS":
            raise HTTPException(405)
        scope["path"], scope["path_params"], scope["path_template"] = path, dict(found.variables), found.template
        if self._before is not None:
            await self._before(request)
        if handler is None:
            return Response(status_code=204, headers={"allow": ", ".join(sorted({*found.methods, "OPTIONS"}))})
        given = {"request": request, "state": self.state, **found.variables}
        content = await handler.function(**{name: given[name] for name in handler.arguments})
        if isinstance(content, Response):
            return content
        body = msgspec.json.encode(content) if handler.media_type == JSON else content
        return Response(body, status_code=handler.status, media_type=handler.media_type)


def json_response(content: Any, status: int = 200) -> Response:
    """Return a response in JSON."""
    return Response(msgspec.json.encode(content), status_code=status, media_type=JSON)


def _require_valid_host(headers: Sequence[tuple[bytes, bytes]]) -> None:
    host = next((value for name, value in headers if name == b"host"), b"")
    if host.translate(None, _HOST):
        raise HTTPException(400, "Invalid host header")
