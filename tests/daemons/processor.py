"""Processor time of processes: the cost of an operation, independent of other load of the machine."""

from __future__ import annotations

import time

_CPUCLOCK_SCHED = 2  # <linux/posix-timers.h>: all threads of a process together, in nanoseconds


def processor_s(pid: int) -> float:
    """Return the processor time that a living process has used since its start, in seconds.

    Raises:
        ProcessLookupError: the process has ended.
    """
    try:
        return time.clock_gettime(((~pid) << 3) | _CPUCLOCK_SCHED)
    except OSError as error:  # the kernel says EINVAL
        raise ProcessLookupError(f"process {pid} has ended") from error


class Answered:
    """The cost of one answer of a daemon: the time that it took, without the time in which the daemon could not run.

    The daemon's processor time during the call bounds the work that it did before it answered. A daemon that other
    programs keep from the processor takes longer and does no more work, so the smaller of both is taken.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._used_s = processor_s(pid)
        self._began_s = time.monotonic()

    def cost_s(self) -> float:
        """Return the cost from the construction until now, in seconds."""
        took_s = time.monotonic() - self._began_s
        return min(took_s, processor_s(self._pid) - self._used_s)
