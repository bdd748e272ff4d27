"""What workers say, in the pool's log: from a pipe that never fills anybody's disk and never ends who writes to it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import structlog

LINE_CHARACTERS_MAX = 240
LINES_MAX = 200  # of one host; whoever says more has nothing new to say
_READ_BYTES = 16 << 10

log = structlog.get_logger(__name__)


class WorkerLog:
    """The named pipe of one host. Whoever writes has it open for reading as well, so it has no end without us."""

    def __init__(self, path: Path, allocation: str) -> None:
        self._path = path
        self._allocation = allocation
        self._descriptor = -1
        self._lines = 0
        self._rest = b""

    def open(self) -> int:
        """Our end, and what the host is to write to."""
        with suppress(FileExistsError):
            os.mkfifo(self._path, 0o600)
        if self._descriptor < 0:
            flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(self._path, flags)
        return self._descriptor

    def read(self) -> None:
        """Tell what came since, a bounded part of it. Never waits."""
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
                log.info("worker: what else it says is not kept", allocation=self._allocation)

    def close(self) -> None:
        if self._descriptor >= 0:
            self.read()
            os.close(self._descriptor)
            self._descriptor = -1
