"""Keep the agent process small: do not import unused modules, and return free heap memory to the system."""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys

_M_ARENA_MAX = -8  # malloc.h
_ARENAS = 1
TIDY_EVERY_S = 15.0
_UNUSED = (
    "rich",  # structlog would import it for coloured tracebacks
    "greenlet",  # structlog would import it to distinguish greenlets
)


def keep_small() -> None:
    """Limit the number of malloc arenas and block imports of unused modules.

    Must be called before large modules are imported.
    """
    for unused in _UNUSED:
        sys.modules.setdefault(unused, None)  # type: ignore[arg-type]
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)


class HeapTrimmer:
    """Return free heap memory to the system at intervals; a call takes less than 1 ms."""

    def __init__(self) -> None:
        self._next_s = -math.inf

    def trim(self, now_s: float) -> None:
        """Return free heap memory to the system, but at most every ``TIDY_EVERY_S`` seconds.

        Args:
            now_s: monotonic time in seconds.
        """
        if now_s >= self._next_s:
            self._next_s = now_s + TIDY_EVERY_S
            give_back()


def give_back() -> None:
    """Return free heap memory to the system, which is 10 MiB or more after the start of the agent."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
