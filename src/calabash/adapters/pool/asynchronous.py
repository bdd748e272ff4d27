"""Interface of an asynchronous client of the pool's API, which tests can implement."""

from __future__ import annotations

from typing import Any, Protocol


class AsyncPoolClient(Protocol):
    """Asynchronous client of a pool's API."""

    async def call(self, method: str, path: str, body: Any = None, *, timeout_s: float = 30.0) -> Any:
        """Return the decoded answer. Raises CalabashError with the pool's reason, or POOL_DOWN, or TIMEOUT."""


async def items(pool: AsyncPoolClient, path: str) -> list[dict[str, Any]]:
    """Return all items of a list, page by page."""
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        page = await pool.call("GET", f"{path}?after={after}" if after else path)
        found += page["items"]
        after = page.get("next", "")
        if not after:
            return found
