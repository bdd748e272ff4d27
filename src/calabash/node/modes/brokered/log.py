"""Output of workers, copied from a named pipe to the pool's log in bounded amounts."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import structlog

LINE_CHARACTERS_MAX = 240
LINES_MAX = 200  # of one worker host; further lines are dropped
_READ_BYTES = 16 << 10

log = structlog.get_logger(__name__)


class WorkerLog:
    """The named pipe of one worker host. The host also has it open for reading, so it stays usable when the pool stops."""

    def __init__(self, path: Path, allocation: str) -> None:
        self._path = path
        self._allocation = allocation
        self._descriptor = -1
        self._lines = 0
        self._rest = b""

    def open(self) -> int:
        """Create the pipe if necessary, and open it. Return the descriptor, which the host inherits. Raises OSError."""
        with suppress(FileExistsError):
            os.mkfifo(self._path, 0o600)
        if self._descriptor < 0:
            flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(self._path, flags)
        return self._descriptor

    def read(self) -> None:
        """Copy new lines to the log, at most 16 KiB per call. Never waits."""
        if self._descriptor < 0:
            return
        try:
            text = os.read(self._descriptor, _READ_BYTES)
        except OSError:
            return
        *lines, self._rest = (self._rest + text).split(b"\n")
        self._rest = self._rest[-LINE_CHARACTERS_MAX:]
        for line in lines:
            self._lines += 1
            if self._lines > LINES_MAX:
                continue
            said = "".join(c if c.isprintable() else "?" for c in line.decode(errors="replace"))
            log.info("worker", allocation=self._allocation, said=said[:LINE_CHARACTERS_MAX])
            if self._lines == LINES_MAX:
                log.info("worker: further output is dropped", allocation=self._allocation, lines_max=LINES_MAX)

    def close(self) -> None:
        if self._descriptor >= 0:
            self.read()
            os.close(self._descriptor)
            self._descriptor = -1
