"""Processes that are kept beside a pool: how one is ended, and when one that died is started again."""

from __future__ import annotations

import subprocess
import time

PAUSE_S, PAUSE_S_MAX = 0.5, 30.0
LIVED_S = 60.0  # whoever lived for so long did not die of how it was started
END_S = 5.0


class RestartPause:
    """Seconds before a process that died is started again: they double while it keeps dying."""

    def __init__(self) -> None:
        self._pause_s = PAUSE_S
        self._begun_s = 0.0

    def begun(self) -> None:
        """The process is started now."""
        self._begun_s = time.monotonic()

    def after_death(self) -> float:
        """How long to wait now."""
        if time.monotonic() - self._begun_s > LIVED_S:
            self._pause_s = PAUSE_S
        pause_s, self._pause_s = self._pause_s, min(PAUSE_S_MAX, 2 * self._pause_s)
        return pause_s


def end(process: subprocess.Popen[bytes]) -> None:
    """Close its input and end it, in the end by SIGKILL; it is gone then."""
    if process.stdin:
        process.stdin.close()
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
