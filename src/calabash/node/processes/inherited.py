"""Processes that are the pool's own although it did not start them: what an earlier pool left and this one took over."""

from __future__ import annotations

import os
import threading

from calabash.adapters.host.processes import Process, alive, identify, parent_of

ANCESTORS_MAX = 16


class OwnProcesses:
    """From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._roots: set[Process] = set()

    def add(self, process: Process) -> None:
        """It and whatever it starts is ours."""
        with self._lock:
            self._roots = {root for root in self._roots if alive(root)} | {process}

    def has(self, pid: int) -> bool:
        """Whether it is this process, one that was taken over, or one that either has started, at whatever remove."""
        with self._lock:
            roots = {root.pid: root for root in self._roots}
        for _ in range(ANCESTORS_MAX):
            if pid == os.getpid() or (pid in roots and identify(pid) == roots[pid]):
                return True
            if pid <= 1:
                return False
            pid = parent_of(pid)
        return False
