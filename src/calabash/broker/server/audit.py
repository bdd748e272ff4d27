"""Audit log of a server: one line of JSON for each event of a lease. Contains no keys and no tokens.

The log is bounded: a file that exceeds BYTES_MAX is renamed to ``audit.log.1``, which replaces the previous file of
that name. If a line cannot be written, it is counted as lost, and the operation that it describes continues.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

AUDIT_FILE = "audit.log"
BYTES_MAX = 16 << 20


class AuditLog:
    """Appends to ``audit.log`` in a directory. ``lost`` counts the lines that could not be written."""

    def __init__(self, directory: Path, *, now: Callable[[], float] = time.time) -> None:
        self._path = directory / AUDIT_FILE
        self._now = now
        self.lost = 0

    def write(self, event: str, **fields: object) -> None:
        """Append one event with its fields; texts are cut after 200 characters."""
        said = {name: value[:200] if isinstance(value, str) else value for name, value in fields.items()}
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._now()))
        line = json.dumps({"at": at, "event": event, **said}) + "\n"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self._path, flags, 0o600)
            try:
                os.write(descriptor, line.encode())
                size = os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
            if size > BYTES_MAX:
                self._path.rename(self._path.with_name(f"{AUDIT_FILE}.1"))
        except OSError:
            self.lost += 1
