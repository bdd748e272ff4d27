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
    """Cost of one answer of a daemon, without the time in which other programs kept the daemon from the processor.

    It is the time that the answer took, or the daemon's processor time meanwhile if that is less. A daemon that has to
    wait for the processor takes longer but uses no more processor time.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._used_s = processor_s(pid)
        self._began_s = time.monotonic()

    def cost_s(self) -> float:
        """Return the cost from the construction until now, in seconds."""
        took_s = time.monotonic() - self._began_s
        return min(took_s, processor_s(self._pid) - self._used_s)
