"""Which of many processes have ended: the kernel is asked once for all of them, not once for each."""

from __future__ import annotations

import os
import select

from calabash.adapters.host.processes import Process, alive


class Endings:
    """Processes that are watched. From one thread at a time."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._descriptors: dict[Process, int] = {}
        self._ended: set[Process] = set()

    def watch(self, process: Process) -> None:
        """From now on it is known when it has ended; for one that has ended already, at once."""
        if process in self._descriptors or process in self._ended:
            return
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:
            self._ended.add(process)
            return
        # The descriptor pins the process; only now does the comparison of start times mean anything.
        if not alive(process):
            os.close(descriptor)
            self._ended.add(process)
            return
        self._descriptors[process] = descriptor
        self._poll.register(descriptor, select.POLLIN)

    def forget(self, process: Process) -> None:
        """It is of no concern any more."""
        self._ended.discard(process)
        descriptor = self._descriptors.pop(process, None)
        if descriptor is not None:
            self._poll.unregister(descriptor)
            os.close(descriptor)

    def look(self) -> None:
        """Ask the kernel."""
        ready = {descriptor for descriptor, _ in self._poll.poll(0)}
        for process in [p for p, descriptor in self._descriptors.items() if descriptor in ready]:
            self.forget(process)
            self._ended.add(process)

    def ended(self, process: Process) -> bool:
        """Whether it had ended at the last look."""
        return process in self._ended

    def close(self) -> None:
        for process in list(self._descriptors):
            self.forget(process)
