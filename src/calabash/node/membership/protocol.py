"""Who belongs to which allocation: the one question behind starting, counting, ending and releasing.

Three forms behind one protocol. **kernel**: every allocation is a control group; its programs cannot leave it, and the
kernel says when the last one is gone. **container**, kernel as well for whoever asks: the groups are those that the
kubelet and the runtime have made for containers, found by the slot that is mounted in them. **lease**: every program
holds a shared lock on a file; a program can give it away or drop it, so this form serves only the user that the pool
itself runs as. Which of the first and the last a pool has is decided when it starts (``choose_membership``) and told in
its status; the agent of a node of a cluster has the second.
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
    """The processes of every allocation. Methods may be called from any thread and never wait for a tenant."""

    @property
    def form(self) -> str:
        """``kernel`` or ``lease``."""
        ...

    def prepare(self, allocation: AllocationId) -> None:
        """Make room for its programs. Raises CalabashError."""
        ...

    def group(self, allocation: AllocationId) -> int:
        """Return the inode number of its control group; 0: it has none that is its own."""
        ...

    def enter(self, allocation: AllocationId, process: Process) -> None:
        """Make a process, and whatever it starts from now on, a member. Raises CalabashError and then it is none."""
        ...

    def populated(self, allocation: AllocationId) -> bool:
        """Whether any member lives."""
        ...

    def news(self) -> Collection[AllocationId] | None:
        """Return the allocations for which ``populated`` may answer otherwise than before the last call of ``news``.

        None: this form cannot tell. From one thread.
        """
        ...

    def processes(self, allocation: AllocationId) -> list[Process]:
        """Its live members by pid, as far as this process may see them."""
        ...

    def pids(self, allocation: AllocationId) -> list[int]:
        """Return the numbers of its live members, in order, without a look at each."""
        ...

    def allocation_of(self, pid: int) -> AllocationId | None:
        """The allocation that a process belongs to; None for a stranger and for a process that is gone."""
        ...

    def signal(
        self, allocation: AllocationId, number: signal.Signals, *, only: Collection[Process] | None = None
    ) -> None:
        """Signal every member, or those of ``only`` that are members."""
        ...

    def kill(self, allocation: AllocationId) -> None:
        """End every member now."""
        ...

    def freeze(self, allocation: AllocationId, frozen: bool) -> None:
        """Stop every member where it is, or let all go on."""
        ...

    def remove(self, allocation: AllocationId) -> bool:
        """Let nobody in any more; False while a member lives."""
        ...

    def close(self) -> None:
        """The pool stops: leave nothing behind where nobody is left."""
        ...

    def adopt(self, records: Iterable[AllocationRecord]) -> set[AllocationId]:
        """Take over what an earlier pool left; the allocations that have a member. ``records``: what the journal says."""
        ...


def choose_membership(home: Path, slots: Path, names: SlotNames | None = None) -> Membership:
    """The strongest form that this process may have: groups for root, leases otherwise."""
    names = names or SlotNames()
    if os.geteuid() == 0:
        hierarchy = _hierarchy(home)
        if hierarchy is not None:
            kernel = KernelMembership(hierarchy, group_name(home), names)
            if kernel.works():
                return kernel
    return LeaseMembership(lambda allocation: slots / names.name_of(allocation) / LEASE_FILE)


def witness_words(membership: Membership, slots: Path) -> tuple[str, ...]:
    """Return the arguments that tell the end recorder where member processes are seen.

    They are empty for containers: their groups are the runtime's, and nothing of the agent outlives its own container.
    """
    if isinstance(membership, KernelMembership):
        return ("--groups", str(membership.base.absolute()))
    if isinstance(membership, LeaseMembership):
        return ("--leases", str(slots.absolute()))
    return ()


def group_name(home: Path) -> str:
    """Name of the group of a pool: two pools of one machine never share it."""
    return "calabash-" + hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:8]


def _hierarchy(home: Path) -> CgroupHierarchy | None:
    found = find_hierarchy()
    if found is not None:
        return found
    try:
        return mount_hierarchy(home / "cgroup")
    except OSError:
        return None
