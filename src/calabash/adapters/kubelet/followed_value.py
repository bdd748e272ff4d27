"""A value that streams of answers follow: each begins with it as it is, and tells it again when it has changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Generic, TypeVar

V = TypeVar("V")


class Followed(Generic[V]):
    """On one event loop."""

    def __init__(self, value: V) -> None:
        self.value = value
        self.streams = 0  # who follows now
        self.begun = 0  # how many ever did
        self._changed = asyncio.Event()
        self._epoch = 0

    def set(self, value: V) -> None:
        """Tell it, if it has not been told."""
        if value != self.value:
            self.value = value
            self._wake()

    def end(self) -> None:
        """End all streams in good order, as before the server is closed."""
        self._epoch += 1
        self._wake()

    async def follow(self, *, again_s: float | None = None) -> AsyncGenerator[V, None]:
        """The value now and at every change, until ``end``; also after ``again_s`` without one, for whom it goes stale."""
        self.streams += 1
        self.begun += 1
        epoch = self._epoch
        try:
            while epoch == self._epoch:
                changed = self._changed
                yield self.value
                try:
                    await asyncio.wait_for(changed.wait(), again_s)
                except TimeoutError:
                    continue
        finally:
            self.streams -= 1

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
