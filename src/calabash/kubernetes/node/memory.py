"""An agent runs on every node, so it is small: without what only people at a terminal need, and without what a start leaves."""

from __future__ import annotations

import contextlib
import ctypes
import sys

_M_ARENA_MAX = -8  # malloc.h
_ARENAS = 1


def keep_small() -> None:
    """Before anything large is loaded: few arenas, and no colours for logs."""
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # structlog would load it for coloured tracebacks
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)


def give_back() -> None:
    """When the start is done: certificates, schemas and lists that were read leave holes of 10 MiB and more behind."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
