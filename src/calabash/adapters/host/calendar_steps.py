"""The calendar as it was at earlier moments of this boot of the machine.

The kernel says when a process started by a clock that counts from the boot. Other programs, such as the kubelet, write
moments down by the calendar as it was then. To compare the two after somebody has set the calendar, this keeps at which
moments the calendar was set, and by how much; also in a file, for the process that comes after this one.
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

STEP_S = 0.1  # a smaller change is that of a clock that is slowly adjusted
STEPS_MAX = 256

log = structlog.get_logger(__name__)


class _Steps(msgspec.Struct, frozen=True):
    """``booted``: pairs of a moment, in seconds since the boot, and the time of the boot by the calendar from then on."""

    boot: str
    booted: list[tuple[float, float]]


class CalendarSteps:
    """See the module's description. ``observe`` is called again and again, by one thread; the rest by any.

    Args:
        file: where the steps are kept; None: nowhere.
        boot: which boot of the machine this is; "": not known, then nothing is read from the file.
        now_s: the calendar, seconds since 1970.
        since_boot_s: seconds since the boot.
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
        """Note whether the calendar has been set since the last call."""
        at_s = self._since_boot_s()
        booted_s = self._now_s() - at_s
        if abs(booted_s - self._booted[-1][1]) < STEP_S:
            return
        self._booted = [*self._booted, (at_s, booted_s)][-STEPS_MAX:]
        self._write()

    def calendar_s(self, since_boot_s: float) -> float:
        """Return the time of a moment by the calendar as it was at that moment."""
        booted = self._booted
        place = bisect_right(booted, since_boot_s, key=lambda step: step[0])
        return booted[max(0, place - 1)][1] + since_boot_s

    def began_s(self, process: Process) -> float:
        """Return when a process was started, by the calendar as it was then."""
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
            log.error("when the calendar was set is not known", file=str(self._file), error=str(error))
            return []
        return found.booted if found.boot == self._boot else []

    def _write(self) -> None:
        """A disk that takes nothing delays nobody: it is written with the next step."""
        if self._file is None:
            return
        try:
            write_durably(self._file, msgspec.json.encode(_Steps(self._boot, self._booted)))
        except (OSError, CalabashError) as error:
            log.error("that the calendar was set cannot be kept", file=str(self._file), error=str(error))
