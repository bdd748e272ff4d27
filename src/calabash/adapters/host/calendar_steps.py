"""History of changes of the calendar since the machine was booted.

The kernel reports the start time of a process in seconds since the boot. Other programs, such as the kubelet, record
what the calendar showed at the start. If the calendar is set later, the two times no longer match. This module
therefore records each *step* of the calendar: when it was set, and by how much. The steps are stored in a file, so that
the next process has them too.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from calabash.adapters.host.files import write_durably
from calabash.adapters.host.processes import Process
from calabash.model.errors import CalabashError

STEP_S = 0.1  # seconds; a smaller change comes from gradual adjustment of the clock
STEPS_MAX = 256

log = structlog.get_logger(__name__)


class _Steps(msgspec.Struct, frozen=True):
    """Recorded steps of the calendar.

    Args:
        boot: ID of the boot of the machine during which they were recorded.
        booted: one pair for the boot and one for each step. The first number is the moment of the step in seconds
            since the boot (0 for the boot). The second is the time of the boot by the calendar as it was set then, in
            seconds since 1970.
    """

    boot: str
    booted: list[tuple[float, float]]


class CalendarSteps:
    """Calendar time at earlier moments since the boot.

    One thread calls ``observe`` periodically. The other methods may be called from any thread.

    Args:
        file: file in which the steps are stored; None to store nothing.
        boot: ID of this boot of the machine; "" if it is unknown, and then the file is not read.
        now_s: returns the calendar time in seconds since 1970.
        since_boot_s: returns the seconds since the boot.
    """

    def __init__(
        self,
        file: Path | None = None,
        *,
        boot: str = "",
        now_s: Callable[[], float] = time.time,
        since_boot_s: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._file = file
        self._boot = boot
        self._now_s = now_s
        self._since_boot_s = since_boot_s
        self._booted = self._read()
        if self._booted:
            self.observe()
        else:
            self._booted = [(0.0, now_s() - since_boot_s())]
            self._write()

    def observe(self) -> None:
        """Record a step if the calendar has been set since the last call."""
        at_s = self._since_boot_s()
        booted_s = self._now_s() - at_s
        if abs(booted_s - self._booted[-1][1]) < STEP_S:
            return
        self._booted = [*self._booted, (at_s, booted_s)][-STEPS_MAX:]
        self._write()

    def calendar_s(self, since_boot_s: float) -> float:
        """Return the calendar time, in seconds since 1970, that was shown ``since_boot_s`` seconds after the boot."""
        booted = self._booted
        place = bisect_right(booted, since_boot_s, key=lambda step: step[0])
        return booted[max(0, place - 1)][1] + since_boot_s

    def began_s(self, process: Process) -> float:
        """Return the start time of a process in seconds since 1970, as the calendar showed it at that moment."""
        return self.calendar_s(process.start_time / os.sysconf("SC_CLK_TCK"))

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _read(self) -> list[tuple[float, float]]:
        if self._file is None or not self._boot:
            return []
        try:
            found = msgspec.json.decode(self._file.read_bytes(), type=_Steps)
        except FileNotFoundError:
            return []
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.error("cannot read the recorded changes of the calendar", file=str(self._file), error=str(error))
            return []
        return found.booted if found.boot == self._boot else []

    def _write(self) -> None:
        """Write the file; if that fails, it is written with the next step."""
        if self._file is None:
            return
        try:
            write_durably(self._file, msgspec.json.encode(_Steps(self._boot, self._booted)))
        except (OSError, CalabashError) as error:
            log.error("cannot store a change of the calendar", file=str(self._file), error=str(error))
