"""The pool's log, limited in rate per event and user, and in size.

A user may cause a log line ten thousand times a second. So at most LINES_MAX lines of one event and user are written in each
period of PERIOD_S seconds. The first line of the next period says how many lines were dropped. A log that has grown beyond
LOG_BYTES_MAX is renamed to ``pool.log.1``, which replaces the previous file of that name.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import structlog

from calabash.adapters.host.log_stream import log_stream
from calabash.model.messages import Message, in_full

LOG_FILE = "pool.log"
LINES_MAX = 20
PERIOD_S = 10.0
KINDS_MAX = 4096
LOG_BYTES_MAX = 16 << 20

Line = MutableMapping[str, Any]


STARTING = "starting"  # the event of a line that reports a step of the pool's start


class RateLimit:
    """Structlog processor that drops lines beyond LINES_MAX per event and user in PERIOD_S seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s = clock()
        self._counts: dict[tuple[str, str], int] = {}

    def __call__(self, _logger: Any, _method: str, line: Line) -> Line:
        now_s = self._clock()
        if now_s - self._since_s >= PERIOD_S:
            left_out = {key: n - LINES_MAX for key, n in self._counts.items() if n > LINES_MAX}
            self._since_s, self._counts = now_s, {}
            if left_out:
                some = sorted(left_out.items(), key=lambda item: -item[1])[:5]
                summary = ", ".join(f"{n} of {kind!r}" + (f" for uid {uid}" if uid else "") for (kind, uid), n in some)
                line["left_out"] = f"{sum(left_out.values())} lines in the last {PERIOD_S:g}s: {summary}"
        key = (str(line.get("event", ""))[:80], str(line.get("uid", "")))
        if key not in self._counts and len(self._counts) >= KINDS_MAX:
            key = ("(others)", "")
        self._counts[key] = self._counts.get(key, 0) + 1
        if self._counts[key] > LINES_MAX and "left_out" not in line:
            raise structlog.DropEvent
        return line


def _with_plain_texts(_logger: Any, _method: str, line: Line) -> Line:
    """Structlog processor that renders messages.

    The names are not redacted, because only administrators read the log.
    """
    for key, value in line.items():
        if isinstance(value, str | Message):
            line[key] = in_full(value)
    return line


class _Forward(logging.Handler):
    """Handler that forwards log records of libraries to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        raised = {"exc_info": record.exc_info} if record.exc_info else {}
        structlog.get_logger(record.name).warning(
            record.getMessage()[:500], level_of=record.levelname.lower(), **raised
        )


def configure() -> None:
    """Set up the log on standard error."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            RateLimit(),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _with_plain_texts,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False),
        ],
        logger_factory=structlog.PrintLoggerFactory(log_stream()),
    )
    root = logging.getLogger()
    root.handlers = [_Forward()]
    root.setLevel(logging.WARNING)


def keep_small(path: Path, *, most: int = LOG_BYTES_MAX) -> bool:
    """Rotate the log if it has ``most`` bytes or more and is this process's standard error; return True if it was rotated."""
    try:
        there, ours = path.stat(), os.fstat(2)
        if (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino) or there.st_size < most:
            return False
        path.rename(path.with_name(path.name + ".1"))
        fresh = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        also = os.fstat(1)
        os.dup2(fresh, 2)
        if (also.st_dev, also.st_ino) == (ours.st_dev, ours.st_ino):
            os.dup2(fresh, 1)
        os.close(fresh)
    except OSError:
        return False
    return True
