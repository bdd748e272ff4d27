"""File with the time of the pool's last round over all allocations.

When a pool starts again, it meters the allocations that ended in between up to that time at least. The time is written
without waiting for the disk, because it is written often. So it survives the end of the process; after a loss of power
the last time that reached the disk is used.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from calabash.node.metering.interval import Moment

FILE = "last-round"
_BYTES_MAX = 256


class LastRound:
    """File with the time of the last round of the pool. Failures to write it are ignored: metering works without it."""

    def __init__(self, home: Path) -> None:
        self._path = home / FILE
        self._descriptor = -1

    def read(self) -> Moment | None:
        """Return the stored moment; None if there is no valid file."""
        try:
            with self._path.open("rb") as file:
                boot, monotonic_ns, now_s = file.read(_BYTES_MAX).decode("ascii").split()
            return Moment(boot="" if boot == "-" else boot, monotonic_ns=int(monotonic_ns), now_s=float(now_s))
        except (OSError, ValueError):
            return None

    def write(self, moment: Moment) -> None:
        """Overwrite the stored moment. All moments have the same length, so a reader sees the old or the new one."""
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
