"""Stream for log lines: standard error, ignoring write errors."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TextIO, cast


class LogStream:
    """Standard error for a logger. A line that cannot be written is dropped, so that a full disk ends no thread."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()


def log_stream() -> TextIO:
    """Return a LogStream, declared as TextIO for structlog's factories, which only call ``write`` and ``flush``."""
    return cast("TextIO", LogStream())
