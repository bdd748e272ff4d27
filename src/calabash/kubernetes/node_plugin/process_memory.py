"""An agent runs on every node, so it is small: without what only people at a terminal need, and without what a start leaves."""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys

_M_ARENA_MAX = -8  # malloc.h
_ARENAS = 1
TIDY_EVERY_S = 15.0
_UNUSED = (
    "rich",  # structlog would load it for coloured tracebacks
    "greenlet",  # structlog would tell loggers of greenlets apart, of which there are none
)


def keep_small() -> None:
    """Before anything large is loaded: few arenas, and nothing that is loaded only because it is installed."""
    for unused in _UNUSED:
        sys.modules.setdefault(unused, None)  # type: ignore[arg-type]
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)


class Tidiness:
    """Gives back now and then what work has left: starts of containers leave holes of some MiB. Takes less than 1 ms."""

    def __init__(self) -> None:
        self._next_s = -math.inf

    def tend(self, now_s: float) -> None:
        """``now_s``: monotonic time."""
        if now_s >= self._next_s:
            self._next_s = now_s + TIDY_EVERY_S
            give_back()


def give_back() -> None:
    """When the start is done: certificates, schemas and lists that were read leave holes of 10 MiB and more behind."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
