"""Who did what when on a server, a line of JSON each: leases and what became of them. No keys, no tokens.

The file is bounded: when it has grown large it is set aside once, and the one before it goes. What cannot be written is
counted and does not keep anybody from their cards.
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
    """Appends to ``audit.log`` in a directory."""

    def __init__(self, directory: Path, *, now: Callable[[], float] = time.time) -> None:
        self._path = directory / AUDIT_FILE
        self._now = now
        self.lost = 0

    def write(self, event: str, **fields: object) -> None:
        """One line; values are shown as JSON, texts of at most 200 characters."""
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
