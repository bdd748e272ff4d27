"""Membership by lease files: every program of an allocation holds a shared lock on its file, and so do its children.

A program can drop the lock or send the open file to another process. So this form is used only for programs of the user
that the pool runs as, which need not be guarded against. A process that was once seen as a member is remembered and
counts as a member until it ends. Children of such a process are members even if they have closed the lease file, as
workers of some libraries do.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from calabash.adapters.host.files import Lease
from calabash.adapters.host.processes import (
    Process,
    alive,
    children_of,
    has_open,
    holders,
    identify,
    owner,
    parent_of,
    send_signal,
)
from calabash.model.allocation import AllocationRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId


class LeaseMembership:
    """Membership by the lease files of one pool; ``path_of`` returns the path of the lease file of an allocation."""

    form = "lease"

    def __init__(self, path_of: Callable[[AllocationId], Path]) -> None:
        self._path_of = path_of
        self._leases: dict[AllocationId, Lease] = {}
        self._programs: dict[AllocationId, set[Process]] = {}  # programs that entered or were seen

    def prepare(self, allocation: AllocationId) -> None:
        """Do nothing: the lease file is created with the slot."""

    def group(self, allocation: AllocationId) -> int:
        del allocation
        return 0

    def enter(self, allocation: AllocationId, process: Process) -> None:
        """Remember a process as a member. Raises CalabashError(NOT_FOUND) if it has ended."""
        if not alive(process):
            raise CalabashError(f"process {process.pid} has ended", reason=Reason.NOT_FOUND)
        self._programs.setdefault(allocation, set()).add(process)

    def populated(self, allocation: AllocationId) -> bool:
        lease = self._lease(allocation)
        return (lease is not None and lease.held()) or bool(self._alive(allocation))

    def pids(self, allocation: AllocationId) -> list[int]:
        return [process.pid for process in self.processes(allocation)]

    def changed_allocations(self) -> Collection[AllocationId] | None:
        return None

    def processes(self, allocation: AllocationId) -> list[Process]:
        path = self._path_of(allocation)
        programs = self._alive(allocation)
        started = {child for program in programs for pid in children_of(program.pid) if (child := identify(pid))}
        found = {*holders([path])[path], *programs, *started}
        return sorted(found, key=lambda process: process.pid)

    def allocation_of(self, pid: int) -> AllocationId | None:
        process = identify(pid)
        if process is None:
            return None
        for allocation, programs in list(self._programs.items()):
            if process in programs or identify(parent_of(pid)) in programs:
                return allocation
        for allocation in list(self._leases):
            if has_open(pid, self._path_of(allocation)):
                self._programs.setdefault(allocation, set()).add(process)
                return allocation
        return None

    def signal(
        self, allocation: AllocationId, number: signal.Signals, *, only: Collection[Process] | None = None
    ) -> None:
        for process in self.processes(allocation):
            if (only is None or process in only) and os.geteuid() in {0, owner(process)}:
                send_signal(process, number)

    def kill(self, allocation: AllocationId) -> None:
        """Kill all members.

        A lease file can be locked although no process has it open, if a process has sent the open file through a Unix
        socket and no process has received it yet. No process can be killed then, so the lock is ignored from now on.
        """
        self.signal(allocation, signal.SIGKILL)
        if not self.processes(allocation):
            lease = self._leases.get(allocation)
            if lease is not None:
                lease.void = True

    def freeze(self, allocation: AllocationId, frozen: bool) -> None:
        self.signal(allocation, signal.SIGSTOP if frozen else signal.SIGCONT)

    def remove(self, allocation: AllocationId) -> bool:
        lease = self._lease(allocation)
        if self._alive(allocation) or (lease is not None and not lease.try_take()):
            return False
        self._programs.pop(allocation, None)
        if lease is not None:
            del self._leases[allocation]
            lease.close()
        return True

    def adopt(self, records: Iterable[AllocationRecord]) -> set[AllocationId]:
        for record in records:
            program = Process(pid=record.program_pid, start_time=record.program_start_time)
            if alive(program):
                self._programs.setdefault(record.id, set()).add(program)
        return {allocation for allocation in list(self._programs) if self.populated(allocation)}

    def close(self) -> None:
        for lease in self._leases.values():
            lease.close()
        self._leases.clear()

    def _alive(self, allocation: AllocationId) -> set[Process]:
        found = self._programs.get(allocation)
        if not found:
            return set()
        living = {process for process in found if alive(process)}
        self._programs[allocation] = living
        return living

    def _lease(self, allocation: AllocationId) -> Lease | None:
        lease = self._leases.get(allocation)
        if lease is None:
            with contextlib.suppress(OSError):
                lease = self._leases[allocation] = Lease(self._path_of(allocation))
        return lease
