"""The log of a soak: a line for each thing that happens (when, who, what), and once a minute what happened in it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path


class Log:
    """Writes to a file, and what people want to follow to standard output as well."""

    def __init__(self, path: Path, *, quiet: bool = False) -> None:
        self.path = path
        self.began = time.monotonic()
        self._quiet = quiet
        self._file = path.open("a")
        self._lock = threading.Lock()
        self._minute: Counter[str] = Counter()

    def line(self, who: str, what: str, *, aloud: bool = False) -> None:
        """One line, whatever is said in it; ``aloud``: on the terminal, too."""
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
        """The summary of a minute: who did how much, and what is to be said beside it."""
        with self._lock:
            did = ", ".join(f"{who} {count}" for who, count in sorted(self._minute.items()) if who != "minute")
            self._minute.clear()
        self.line("minute", what, aloud=True)
        self.line("minute", f"lines: {did or 'none'}")

    def close(self) -> None:
        self._file.close()
