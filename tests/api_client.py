"""Client of a pool that takes paths, as a program outside the product sends them."""

from __future__ import annotations

from typing import Any

from calabash.adapters.pool.client import PoolClient
from calabash.api.endpoints import quoted


class PathClient(PoolClient):
    """Client of the pool on this machine for requests by method and path."""

    def get(self, path: str, *, timeout_s: float = 30.0) -> Any:
        return self.call("GET", path, timeout_s=timeout_s)

    def rows(self, path: str, *, timeout_s: float = 30.0) -> list[Any]:
        """Return all items of the list at this path, page by page."""
        found: list[Any] = []
        target = path
        while True:
            page = self.get(target, timeout_s=timeout_s)
            found += page["items"]
            if not page.get("next"):
                return found
            target = f"{path}{'&' if '?' in path else '?'}after={quoted(page['next'])}"

    def post(self, path: str, body: Any = None, *, timeout_s: float = 30.0) -> Any:
        return self.call("POST", path, {} if body is None else body, timeout_s=timeout_s)

    def put(self, path: str, body: Any, *, timeout_s: float = 30.0) -> Any:
        return self.call("PUT", path, body, timeout_s=timeout_s)

    def delete(self, path: str, *, timeout_s: float = 30.0) -> Any:
        return self.call("DELETE", path, timeout_s=timeout_s)
