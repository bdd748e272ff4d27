"""Binding to ``libcalabash-page.so``, for changes of the counters in usage pages that must be atomic."""

from __future__ import annotations

import ctypes
from pathlib import Path

from calabash.node.slots.ordered_words import LIBRARY, loaded
from calabash.node.slots.pages import ProcUsage, UsagePage


class PageLibrary:
    """The loaded library. The constructor raises CalabashError(BAD_FILE) if it has not been built."""

    def __init__(self, path: Path = LIBRARY) -> None:
        library = loaded(path)
        self._reap = library.cb_page_reap
        self._reap.restype = ctypes.c_int
        self._reap.argtypes = [
            ctypes.c_void_p,
            ctypes.c_uint32,
            ctypes.c_uint32,
            ctypes.c_int32,
            ctypes.c_uint64,
        ]
        self._set_host_pid = library.cb_page_set_host_pid
        self._set_host_pid.restype = ctypes.c_int
        self._set_host_pid.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_int32]

    def reap(self, page: UsagePage, proc: ProcUsage) -> bool:
        """Subtract a process that has ended from the counters.

        Returns False if the call is to be retried because the tenant keeps changing the page.
        """
        answer = self._reap(page.address, proc.index, proc.generation, proc.pid, proc.start_time)
        return int(answer) >= 0

    def set_host_pid(self, page: UsagePage, proc: ProcUsage, host_pid: int) -> None:
        """Write the pid of a process in the host's namespace to its entry."""
        self._set_host_pid(page.address, proc.index, proc.generation, host_pid)
