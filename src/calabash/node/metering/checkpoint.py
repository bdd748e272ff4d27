"""When the pool last looked at all its allocations, in a file that outlives it: a pool that starts again meters what ended in
between up to there. One small write without waiting for the disk: it survives the end of the process, and after a loss of power
the last moment that reached the disk counts."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from calabash.node.metering.interval import Moment

FILE = "last-round"
_BYTES_MAX = 256


class LastRound:
    """The file in the pool's home. A home that takes no writes costs the figure and nothing else."""

    def __init__(self, home: Path) -> None:
        self._path = home / FILE
        self._descriptor = -1

    def read(self) -> Moment | None:
        """None when there is none, or nothing that was written here."""
        try:
            with self._path.open("rb") as file:
                boot, monotonic_ns, now_s = file.read(_BYTES_MAX).decode("ascii").split()
            return Moment(boot="" if boot == "-" else boot, monotonic_ns=int(monotonic_ns), now_s=float(now_s))
        except (OSError, ValueError):
            return None

    def write(self, moment: Moment) -> None:
        """Always the same number of bytes, so a reader sees one moment or the other."""
        line = f"{moment.boot or '-':<40} {moment.monotonic_ns:020} {moment.now_s:022.6f}\n".encode()
        with suppress(OSError):
            if self._descriptor < 0:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._descriptor = os.open(self._path, flags, 0o600)
            os.pwrite(self._descriptor, line, 0)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
