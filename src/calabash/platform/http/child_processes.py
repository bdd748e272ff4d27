"""Child processes of a pool: end one, and compute the pause before one is restarted."""

from __future__ import annotations

import subprocess
import time

PAUSE_S, PAUSE_S_MAX = 0.5, 30.0
LIVED_S = 60.0  # a process that lived for so long did not fail at its start
END_S = 5.0


class RestartPause:
    """Pause before a child process is restarted: doubles while the process ends within LIVED_S seconds of its start."""

    def __init__(self) -> None:
        self._pause_s = PAUSE_S
        self._begun_s = 0.0

    def begun(self) -> None:
        """Record that the process is started now."""
        self._begun_s = time.monotonic()

    def after_death(self) -> float:
        """Return the seconds to wait before the restart; call once after each end."""
        if time.monotonic() - self._begun_s > LIVED_S:
            self._pause_s = PAUSE_S
        pause_s, self._pause_s = self._pause_s, min(PAUSE_S_MAX, 2 * self._pause_s)
        return pause_s


def end(process: subprocess.Popen[bytes]) -> None:
    """Close the standard input of a process and end it: SIGTERM, after END_S seconds SIGKILL. Returns when it has ended."""
    if process.stdin:
        process.stdin.close()
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
