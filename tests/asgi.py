"""Send requests to an ASGI application without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Response of an application; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    application: Any,
    method: str,
    path: str,
    *,
    query: bytes = b"",
    headers: Mapping[str, str] | None = None,
    messages: Iterable[Mapping[str, Any]] = ({"type": "http.request", "body": b"", "more_body": False},),
) -> Reply:
    """Send a request and return the response.

    Args:
        path: decoded path.
        messages: what the application receives, before it receives that the client has disconnected.
    """
    waiting, sent = [dict(message) for message in messages], []

    async def receive() -> dict[str, Any]:
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query,
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()],
        "client": ("192.0.2.1", 1),
        "scheme": "http",
        "state": {},
    }
    asyncio.run(application(scope, receive, send))
    start, *rest = sent
    return Reply(
        status=start["status"],
        headers={name.decode().lower(): value.decode("latin-1") for name, value in start["headers"]},
        body=b"".join(message["body"] for message in rest),
    )
