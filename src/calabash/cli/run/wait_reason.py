"""Print on standard error why ``calabash run --wait`` waits. Imports no slow modules."""

from __future__ import annotations

import os
import sys
import time

from calabash.api import endpoints
from calabash.cli.failure import print_on_stderr
from calabash.model.errors import CalabashError

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from calabash.adapters.pool.client import ApiClient

FIRST_S = 2.0  # no line for shorter waits
EVERY_S = 2.0
_REQUEST_S = 5.0
_CLEAR = "\r\x1b[K"


class WaitingLine:
    """Line with the reason and the position of the waiting request: updated in place on a terminal, printed once elsewhere.

    Args:
        pool: client of the pool.
        quiet: print nothing.
    """

    def __init__(self, pool: ApiClient, *, quiet: bool) -> None:
        self._pool = pool
        self._quiet = quiet or sys.stderr is None
        self._terminal = not self._quiet and sys.stderr.isatty()
        self._begun = time.monotonic()
        self._shown = False  # the line is on the terminal now
        self._said = False  # the line was printed to a stream that is not a terminal
        self._away = ""

    def show(self) -> None:
        """Ask the pool why the request of this process waits, and print the reason."""
        if self._quiet or (self._said and not self._terminal):
            return
        try:
            found = self._pool.send(endpoints.LIST_ALLOCATIONS, query={"mine": 1}, timeout_s=_REQUEST_S)["items"]
        except CalabashError:
            return
        for row in found:
            if row["state"] == "pending":
                why = row["explanation"] or row["reason"] or "not decided yet"
                self._write(f"waiting at position {row['position']} in queue {row['queue']}: {why}")
                self._said = True
                return

    def away(self, error: CalabashError) -> None:
        """Print that the pool is down and that this command waits for it; repeat it only for another reason."""
        if not self._quiet and self._away != error.reason:
            self._away = error.reason
            self.clear()
            print_on_stderr(f"waiting for the pool: {error.message}")

    def clear(self) -> None:
        """Remove the line from the terminal."""
        if self._shown:
            self._shown = False
            _put(_CLEAR)

    def _write(self, text: str) -> None:
        text = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
        if not self._terminal:
            print_on_stderr(text)
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
