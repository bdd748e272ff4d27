"""The line on standard error that says why ``calabash run --wait`` waits. Nothing is imported that is slow."""

from __future__ import annotations

import os
import sys
import time

from calabash.cli.failure import say
from calabash.model.errors import CalabashError

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from calabash.adapters.pool.client import ApiClient

FIRST_S = 2.0  # who waits for less is told nothing
EVERY_S = 2.0
_LOOK_S = 5.0
_CLEAR = "\r\x1b[K"


class WaitingLine:
    """One line with the reason and the position of the waiting request: on a terminal renewed in place, elsewhere once.

    Args:
        pool: where the request waits.
        quiet: say nothing.
    """

    def __init__(self, pool: ApiClient, *, quiet: bool) -> None:
        self._pool = pool
        self._quiet = quiet or sys.stderr is None
        self._terminal = not self._quiet and sys.stderr.isatty()
        self._begun = time.monotonic()
        self._shown = False  # on the terminal now
        self._said = False  # elsewhere
        self._away = ""

    def show(self) -> None:
        """Ask the pool why the request of this process waits, and say it."""
        if self._quiet or (self._said and not self._terminal):
            return
        try:
            found = self._pool.get("/v1/allocations?mine=1", timeout_s=_LOOK_S)["items"]
        except CalabashError:
            return
        for row in found:
            if row["state"] == "pending":
                why = row["explanation"] or row["reason"] or "for its turn"
                self._write(f"waiting at position {row['position']} in queue {row['queue']}: {why}")
                self._said = True
                return

    def away(self, error: CalabashError) -> None:
        """Say that the pool cannot take the request now and is waited for; the same reason once."""
        if not self._quiet and self._away != error.reason:
            self._away = error.reason
            self.clear()
            say(f"waiting for the pool: {error.message}")

    def clear(self) -> None:
        """Remove the line from the terminal."""
        if self._shown:
            self._shown = False
            _put(_CLEAR)

    def _write(self, text: str) -> None:
        text = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
        if not self._terminal:
            say(text)
            return
        try:
            width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
        except OSError:
            width = 80
        self._shown = True
        _put(_CLEAR + f"{text} ({time.monotonic() - self._begun:.0f}s)"[: max(1, width - 1)])


def _put(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        return
