"""Memory footprint of the agent process: unused modules are not imported, and free heap memory is returned to the system."""

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
    """Limit malloc arenas and block imports of unused modules. Call it before large modules are imported."""
    for unused in _UNUSED:
        sys.modules.setdefault(unused, None)  # type: ignore[arg-type]
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)


class HeapTrimmer:
    """Return free heap memory to the system at intervals; a call takes less than 1 ms."""

    def __init__(self) -> None:
        self._next_s = -math.inf

    def trim(self, now_s: float) -> None:
        """Trim the heap if ``TIDY_EVERY_S`` seconds have passed; ``now_s`` is monotonic time."""
        if now_s >= self._next_s:
            self._next_s = now_s + TIDY_EVERY_S
            give_back()


def give_back() -> None:
    """Return free heap memory to the system. After the start, that is 10 MiB or more."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
