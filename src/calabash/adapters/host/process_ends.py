"""Watch many processes for their end with one system call for all of them."""

from __future__ import annotations

import os
import select

from calabash.adapters.host.processes import Process, alive


class Endings:
    """Watched processes; used by one thread at a time."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._descriptors: dict[Process, int] = {}
        self._ended: set[Process] = set()

    def watch(self, process: Process) -> None:
        """Watch a process; one that has ended already is reported as ended at once."""
        if process in self._descriptors or process in self._ended:
            return
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:
            self._ended.add(process)
            return
        # Only now that the descriptor pins the process is the comparison of start times conclusive.
        if not alive(process):
            os.close(descriptor)
            self._ended.add(process)
            return
        self._descriptors[process] = descriptor
        self._poll.register(descriptor, select.POLLIN)

    def unwatch(self, process: Process) -> None:
        """Stop watching the process."""
        self._ended.discard(process)
        descriptor = self._descriptors.pop(process, None)
        if descriptor is not None:
            self._poll.unregister(descriptor)
            os.close(descriptor)

    def poll(self) -> None:
        """Ask the kernel which processes have ended."""
        ready = {descriptor for descriptor, _ in self._poll.poll(0)}
        for process in [p for p, descriptor in self._descriptors.items() if descriptor in ready]:
            self.unwatch(process)
            self._ended.add(process)

    def ended(self, process: Process) -> bool:
        """Return True if the process had ended at the last poll."""
        return process in self._ended

    def close(self) -> None:
        for process in list(self._descriptors):
            self.unwatch(process)
