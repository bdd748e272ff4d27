"""Registry of processes that belong to the pool although an earlier pool started them."""

from __future__ import annotations

import os
import threading

from calabash.adapters.host.processes import Process, alive, identify, parent_of

ANCESTORS_MAX = 16


class PoolProcesses:
    """Processes of the pool itself, which are not unmanaged processes. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._roots: set[Process] = set()

    def add(self, process: Process) -> None:
        """Add a process; its descendants count as the pool's as well. Processes that have ended are dropped."""
        with self._lock:
            self._roots = {root for root in self._roots if alive(root)} | {process}

    def has(self, pid: int) -> bool:
        """Return True if the process is this one, an added one, or a descendant of either.

        Follows at most ANCESTORS_MAX parents.
        """
        with self._lock:
            roots = {root.pid: root for root in self._roots}
        for _ in range(ANCESTORS_MAX):
            if pid == os.getpid() or (pid in roots and identify(pid) == roots[pid]):
                return True
            if pid <= 1:
                return False
            pid = parent_of(pid)
        return False
