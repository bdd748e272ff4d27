"""Value that response streams of gRPC follow: each stream begins with the current value and yields every change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Generic, TypeVar

V = TypeVar("V")


class Followed(Generic[V]):
    """Value that streams follow; used on one event loop."""

    def __init__(self, value: V) -> None:
        self.value = value
        self.streams = 0  # number of open streams
        self.begun = 0  # number of streams ever opened
        self._changed = asyncio.Event()
        self._epoch = 0

    def set(self, value: V) -> None:
        """Set the value; streams yield it if it differs."""
        if value != self.value:
            self.value = value
            self._wake()

    def end(self) -> None:
        """End all streams. Called before the server is closed, which would otherwise wait for them."""
        self._epoch += 1
        self._wake()

    async def follow(self, *, again_s: float | None = None) -> AsyncGenerator[V, None]:
        """Yield the value now and at every change until ``end``; also after ``again_s`` seconds without a change."""
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
