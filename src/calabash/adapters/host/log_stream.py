"""Where a process writes its log: standard error, whose disk may be full."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TextIO, cast


class LogStream:
    """Standard error as a logger writes to it. A line that cannot be written is lost: no thread may end for want of a log."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()


def log_stream() -> TextIO:
    """As structlog's factories take it: they write and flush, nothing else."""
    return cast("TextIO", LogStream())
