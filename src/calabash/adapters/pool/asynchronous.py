"""What whoever asks a pool from an event loop needs of it, so that tests can stand in for a pool."""

from __future__ import annotations

from typing import Any, Protocol


class PoolDoor(Protocol):
    """A pool's API."""

    async def call(self, method: str, path: str, body: Any = None, *, timeout_s: float = 30.0) -> Any:
        """The decoded answer. Raises CalabashError with the pool's reason, or POOL_DOWN, or TIMEOUT."""


async def items(pool: PoolDoor, path: str) -> list[dict[str, Any]]:
    """All of a list, page by page."""
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        page = await pool.call("GET", f"{path}?after={after}" if after else path)
        found += page["items"]
        after = page.get("next", "")
        if not after:
            return found
