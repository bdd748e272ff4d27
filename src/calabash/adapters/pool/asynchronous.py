"""Base of asynchronous clients of the pool's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calabash.api.endpoints import Endpoint


class AsyncPoolClient:
    """Asynchronous client of a pool's API; a subclass implements :meth:`call`."""

    async def send(
        self,
        endpoint: Endpoint,
        *values: str,
        body: Any = None,
        query: Mapping[str, object] | None = None,
        timeout_s: float = 30.0,
    ) -> Any:
        """Return the decoded answer; arguments as for ``ApiClient.send``.

        Raises CalabashError with the pool's reason, or POOL_DOWN, or TIMEOUT.
        """
        if body is None and endpoint.method in ("POST", "PUT"):
            body = {}
        return await self.call(endpoint.method, endpoint.at(*values, query=query), body, timeout_s=timeout_s)

    async def items(self, endpoint: Endpoint) -> list[dict[str, Any]]:
        """Return all items of a list, page by page."""
        found: list[dict[str, Any]] = []
        after: dict[str, object] = {}
        while True:
            page = await self.send(endpoint, query=after)
            found += page["items"]
            if not page.get("next"):
                return found
            after = {"after": page["next"]}

    async def call(self, method: str, path: str, body: Any = None, *, timeout_s: float = 30.0) -> Any:
        """Return the decoded answer. ``path`` may have a query string, and is percent-encoded."""
        raise NotImplementedError
