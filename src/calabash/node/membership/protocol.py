"""Membership: which processes belong to which allocation.

An allocation starts when it gets its first member process, is metered while it has one, and is released after the last
one has ended. There are three forms of membership, with one interface.
**kernel**: every allocation has a control group; its programs cannot leave it, and the kernel reports when the last one
has ended. **container** (reported as ``kernel``): the groups are those that the kubelet and the container runtime
create for containers, found by the slot that is mounted in them. **lease**: every program holds a shared lock on a
file. A program can drop this lock or pass it to another process, so this form serves only the user that the pool runs
as. When a pool starts, it chooses between the forms kernel and lease (``choose_membership``) and reports its choice in
its status. The agent of a cluster node uses the form container.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Protocol

from calabash.adapters.host.cgroups.groups import CgroupHierarchy, find_hierarchy, mount_hierarchy
from calabash.adapters.host.processes import Process
from calabash.model.allocation import AllocationRecord
from calabash.model.request import AllocationId
from calabash.node.membership.lease import LeaseMembership
from calabash.node.membership.pool_cgroups import KernelMembership
from calabash.node.slots.names import LEASE_FILE, SlotNames


class Membership(Protocol):
    """Member processes of every allocation. Methods may be called from any thread and never wait for a tenant."""

    @property
    def form(self) -> str:
        """Form of membership, as the status of the pool shows it: ``kernel`` or ``lease``."""
        ...

    def prepare(self, allocation: AllocationId) -> None:
        """Prepare for the first member process, for example create the control group. Raises CalabashError."""
        ...

    def group(self, allocation: AllocationId) -> int:
        """Return the inode number of the control group of an allocation; 0 if the allocation has no separate group."""
        ...

    def enter(self, allocation: AllocationId, process: Process) -> None:
        """Make a process and its later descendants members. Raises CalabashError if that fails."""
        ...

    def populated(self, allocation: AllocationId) -> bool:
        """Return True if any member process lives."""
        ...

    def changed_allocations(self) -> Collection[AllocationId] | None:
        """Return the allocations for which the result of ``populated`` may have changed since the last call.

        None if this form of membership cannot observe changes. Called from one thread.
        """
        ...

    def processes(self, allocation: AllocationId) -> list[Process]:
        """Return the live member processes in the order of their pids, as far as this process may see them."""
        ...

    def pids(self, allocation: AllocationId) -> list[int]:
        """Return the pids of the live member processes in order, without reading each process."""
        ...

    def allocation_of(self, pid: int) -> AllocationId | None:
        """Return the allocation of a process; None if it is not a member or has ended."""
        ...

    def signal(
        self, allocation: AllocationId, number: signal.Signals, *, only: Collection[Process] | None = None
    ) -> None:
        """Send a signal to every member process, or to those of ``only`` that are members."""
        ...

    def kill(self, allocation: AllocationId) -> None:
        """Send SIGKILL to every member process."""
        ...

    def freeze(self, allocation: AllocationId, frozen: bool) -> None:
        """Stop every member process if ``frozen``, else continue all."""
        ...

    def remove(self, allocation: AllocationId) -> bool:
        """Remove the group or lease so that no process can enter; return False while a member process lives."""
        ...

    def close(self) -> None:
        """Release resources when the pool stops; remove groups that are empty."""
        ...

    def adopt(self, records: Iterable[AllocationRecord]) -> set[AllocationId]:
        """Find the member processes of an earlier pool; return the allocations that have a live one.

        ``records`` are the allocations in the journal.
        """
        ...


def choose_membership(home: Path, slots: Path, names: SlotNames | None = None) -> Membership:
    """Return the strongest form that this process may use: control groups for root, leases otherwise."""
    names = names or SlotNames()
    if os.geteuid() == 0:
        hierarchy = _hierarchy(home)
        if hierarchy is not None:
            kernel = KernelMembership(hierarchy, group_name(home), names)
            if kernel.works():
                return kernel
    return LeaseMembership(lambda allocation: slots / names.name_of(allocation) / LEASE_FILE)


def recorder_arguments(membership: Membership, slots: Path) -> tuple[str, ...]:
    """Return the command-line arguments that tell the end recorder where to observe member processes.

    Empty for containers, for which there is no end recorder: it would run in the agent's container and end with it.
    """
    if isinstance(membership, KernelMembership):
        return ("--groups", str(membership.base.absolute()))
    if isinstance(membership, LeaseMembership):
        return ("--leases", str(slots.absolute()))
    return ()


def group_name(home: Path) -> str:
    """Return the name of the control group of a pool; it differs between pools of one machine."""
    return "calabash-" + hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:8]


def _hierarchy(home: Path) -> CgroupHierarchy | None:
    found = find_hierarchy()
    if found is not None:
        return found
    try:
        return mount_hierarchy(home / "cgroup")
    except OSError:
        return None
