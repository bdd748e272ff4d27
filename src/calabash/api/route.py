"""Declaration of an API route as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from calabash.api.endpoints import Endpoint

Reply_co = TypeVar("Reply_co", bound=msgspec.Struct, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route(Generic[Reply_co]):
    """Endpoint with the types of its messages and its description.

    Args:
        endpoint: method, path and status of success.
        summary: description for the reference page and the OpenAPI document.
        reply, body, query: types of the reply, the request body and the query string.
        administrators: only administrators may use the route.
        note: further description, for example of errors and permissions.
    """

    endpoint: Endpoint
    summary: str
    reply: type[Reply_co]
    body: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] | None = None
    administrators: bool = False
    note: str = ""

    @property
    def method(self) -> str:
        return self.endpoint.method

    @property
    def path(self) -> str:
        return self.endpoint.path

    @property
    def status(self) -> int:
        return self.endpoint.status

    @property
    def name(self) -> str:
        return repr(self.endpoint)
