"""Declaration of an API route as data."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Route: one method of one path.

    Args:
        summary: description for the reference page and the OpenAPI document.
        reply, body, query: types of the reply, the request body and the query string.
        status: HTTP status of a successful reply.
        administrators: only administrators may use the route.
        note: further description, for example of errors and permissions.
    """

    method: str
    path: str
    summary: str
    reply: type[msgspec.Struct]
    body: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] | None = None
    status: int = 200
    administrators: bool = False
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"
