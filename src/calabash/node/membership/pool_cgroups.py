"""Membership by control groups of the pool, one for each allocation: ``<hierarchy>/calabash-<pool>/<slot name>``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from calabash.adapters.host.cgroups.groups import Cgroup, CgroupHierarchy, group_of
from calabash.adapters.host.failures import failure, raise_if_exhausted
from calabash.adapters.host.file_watch import FileWatch
from calabash.adapters.host.processes import Process, alive, identify, parent_of
from calabash.model.allocation import AllocationRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.node.membership.cgroups import GroupMembership
from calabash.node.slots.names import SlotNames, is_slot_name


class KernelMembership(GroupMembership):
    """Membership by the control groups of one pool. A tenant can neither leave its group nor enter another one.

    Args:
        name: name of the pool's group, which contains the groups of all allocations.
        names: names of slots, after which the groups are named.
    """

    def __init__(self, hierarchy: CgroupHierarchy, name: str, names: SlotNames | None = None) -> None:
        self._hierarchy = hierarchy
        self._names = names or SlotNames()
        self._base = Cgroup(hierarchy.directory / name)
        self._prefix = f"{hierarchy.top}/{name}/"
        self._watch: FileWatch | None = None
        self._watched: dict[Path, AllocationId] = {}
        self._unwatched: set[AllocationId] = set()  # allocations that the kernel refused to watch

    @property
    def base(self) -> Path:
        """Path of the group that contains the groups of all allocations."""
        return self._base.directory

    def works(self) -> bool:
        """Return True if this process can create control groups below ``base``, and move processes into them."""
        try:
            self._base.create()
            return self._base.populated() or os.access(self._base.directory / "cgroup.procs", os.W_OK)
        except OSError:
            return False

    def prepare(self, allocation: AllocationId) -> None:
        try:
            self._base.create()
            self._group(allocation).create()
            self._follow(allocation)
        except OSError as error:
            hint = "the pool must be able to make groups below " + str(self._base.directory.parent)
            raise failure(error, f"cannot make the control group of {allocation}", hint=hint) from error

    def _follow(self, allocation: AllocationId) -> None:
        """Watch the group of an allocation for the entry of its first process and the end of its last one."""
        path = self._group(allocation).events_path
        if path in self._watched:
            return
        try:
            self._watch = self._watch or FileWatch()
            self._watch.add(path)
        except OSError as error:
            raise_if_exhausted(error)
            self._unwatched.add(allocation)
        else:
            self._watched[path] = allocation

    def changed_allocations(self) -> Collection[AllocationId] | None:
        changed = self._watch.changed() if self._watch is not None else set()
        if changed is None:
            return None
        return {self._watched[path] for path in changed if path in self._watched} | self._unwatched

    def group(self, allocation: AllocationId) -> int:
        return self._group(allocation).number()

    def enter(self, allocation: AllocationId, process: Process) -> None:
        """Move a process into the group of an allocation.

        Raises:
            CalabashError: NOT_FOUND if the allocation is not held or the process has ended; the process is not a
                member.
        """
        if not alive(process):
            raise _gone(process)
        before = group_of(process.pid)
        try:
            self._group(allocation).add(process.pid)
        except FileNotFoundError:
            raise CalabashError(f"allocation {allocation!r} is not held", reason=Reason.NOT_FOUND) from None
        except ProcessLookupError:
            raise _gone(process) from None
        except OSError as error:
            raise failure(error, f"cannot move process {process.pid} into {allocation}") from error
        if not alive(process):
            # The pid was reused between the two checks: move the new process back to its group.
            self._undo(process.pid, before)
            raise _gone(process)

    def _undo(self, pid: int, before: str | None) -> None:
        if identify(pid) is None:
            return
        for name in (group_of(parent_of(pid)), before):
            top = self._hierarchy.top
            if name is not None and name.startswith(top + "/") and not name.startswith(self._prefix):
                with contextlib.suppress(OSError):
                    Cgroup(self._hierarchy.directory / name[len(top) :].lstrip("/")).add(pid)
                    return

    def allocation_of(self, pid: int) -> AllocationId | None:
        name = group_of(pid)
        if name is None or not name.startswith(self._prefix):
            return None
        first = name[len(self._prefix) :].partition("/")[0]
        return self._names.allocation_of(first) if is_slot_name(first) else None

    def remove(self, allocation: AllocationId) -> bool:
        group = self._group(allocation)
        if group.populated():
            return False
        try:
            removed = group.remove()
        except OSError:
            return False
        if removed:
            self._unwatched.discard(allocation)
            self._watched.pop(group.events_path, None)
        return removed

    def adopt(self, records: Iterable[AllocationRecord]) -> set[AllocationId]:
        del records
        found = set()
        for name in self._base.children():
            group = Cgroup(self._base.directory / name)
            if not group.populated():
                with contextlib.suppress(OSError):
                    group.remove()
            elif is_slot_name(name):
                with contextlib.suppress(OSError):
                    group.freeze(False)  # the agent that froze the group is gone
                found.add(self._names.allocation_of(name))
        return found

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        if not self._base.populated():
            with contextlib.suppress(OSError):
                self._base.remove()

    def _groups(self, allocation: AllocationId) -> Sequence[Cgroup]:
        return (self._group(allocation),)

    def _group(self, allocation: AllocationId) -> Cgroup:
        if not is_slot_name(allocation):
            raise CalabashError(f"allocation {allocation!r} is not a plain name", reason=Reason.NOT_FOUND)
        return Cgroup(self._base.directory / self._names.name_of(allocation))


def _gone(process: Process) -> CalabashError:
    return CalabashError(f"process {process.pid} has ended", reason=Reason.NOT_FOUND)
