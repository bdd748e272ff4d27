"""Order and pauses in which the servers of a database are tried."""

from __future__ import annotations

import time
from collections.abc import Sequence

PAUSE_S, PAUSE_S_MAX = 0.1, 0.5
STAND_S = 3.0  # a connection that lasted this long did not fail at once


class Rotation:
    """Servers of a database, which are tried one after the other."""

    def __init__(self, remotes: Sequence[str]) -> None:
        self._remotes = tuple(remotes)
        self._tried = 0
        self._pause_s = PAUSE_S
        self._begun_s = 0.0

    def next(self) -> str:
        remote = self._remotes[self._tried % len(self._remotes)]
        self._tried += 1
        self._begun_s = time.monotonic()
        return remote

    def pause_s(self, *, other_may: bool) -> float:
        """Return the pause before the next attempt, in seconds.

        Args:
            other_may: True if the last server answered that it cannot serve the database, but another server may.
        """
        if time.monotonic() - self._begun_s > STAND_S:
            self._pause_s = PAUSE_S
            return 0.0
        if other_may and self._tried % len(self._remotes):
            return 0.0
        pause_s, self._pause_s = self._pause_s, min(PAUSE_S_MAX, 2 * self._pause_s)
        return pause_s
