"""Log of a soak: a line for each event (time, part, text), and once a minute a summary."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path


class Log:
    """Log to a file, and in part to standard output."""

    def __init__(self, path: Path, *, quiet: bool = False) -> None:
        self.path = path
        self.began = time.monotonic()
        self._quiet = quiet
        self._file = path.open("a")
        self._lock = threading.Lock()
        self._minute: Counter[str] = Counter()

    def line(self, who: str, what: str, *, aloud: bool = False) -> None:
        """Write one line; ``aloud``: also on the terminal."""
        passed_s = time.monotonic() - self.began
        told = " | ".join(what.splitlines())
        text = f"{int(passed_s // 60):3d}:{passed_s % 60:06.3f}  {who:<12} {told}"
        with self._lock:
            self._minute[who] += 1
            self._file.write(text + "\n")
            self._file.flush()
            if aloud and not self._quiet:
                print(text, flush=True)

    def minute(self, what: str) -> None:
        """Write the summary of a minute: the number of events of each part, and the given text."""
        with self._lock:
            did = ", ".join(f"{who} {count}" for who, count in sorted(self._minute.items()) if who != "minute")
            self._minute.clear()
        self.line("minute", what, aloud=True)
        self.line("minute", f"lines: {did or 'none'}")

    def close(self) -> None:
        self._file.close()
