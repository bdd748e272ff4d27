"""Who finds no room waits a few seconds while somebody is just leaving: the kubelet would ask again much later."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from calabash.adapters.clock import Clock
from calabash.model.errors import CalabashError, Reason

LEAVING_S = 6.0  # the kubelet waits 30 s for an answer, and 10 s and longer before it asks again
_LOOK_AGAIN_S = 0.05
_TAKEN = frozenset((Reason.NO_CAPACITY, Reason.NO_MEMORY, Reason.NO_CORES, Reason.MODE_CONFLICT))
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to try.

    Args:
        leaving: whether something that is held is about to be given back.
        pause: sleeps for so many seconds.
    """

    clock: Clock
    leaving: Callable[[], bool]
    pause: Callable[[float], None] = time.sleep

    def until_there_is_room(self, attempt: Callable[[], R]) -> R:
        """What ``attempt`` gives; what it raises for want of room only when nobody is leaving, or has not left in time."""
        until_ns = self.clock.monotonic_ns() + int(LEAVING_S * 1e9)
        while True:
            try:
                return attempt()
            except CalabashError as error:
                if error.reason not in _TAKEN or not self.leaving() or self.clock.monotonic_ns() >= until_ns:
                    raise
            self.pause(_LOOK_AGAIN_S)
