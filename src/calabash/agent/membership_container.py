"""Membership by the groups of containers: the kubelet and the runtime make them, here they are only found and read.

The identifier of an allocation begins with the UID of its pod (``container_allocation``), which names the pod's group.
Which of its containers is the allocation's is seen by the slot: every slot is a file system of its own, and it is mounted
in that container alone. A tenant can neither leave its container's group nor mount somebody else's slot.

Where a worker of ours uses the card in a container's stead, the worker is the allocation's: it has a group of its own beside
those of the containers, under a name that no runtime gives.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from calabash.agent.membership_groups import GroupMembership
from calabash.agent.slot_names import is_slot_name
from calabash.model.allocation import AllocationRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.seams.host.cgroups import Cgroup
from calabash.seams.host.container_groups import (
    ContainerHierarchy,
    container_groups,
    group_names,
    join_pod,
    mounted_devices,
    pod_groups,
)
from calabash.seams.host.processes import Process, began_s, identify

_UID_DIGITS = 32
_HEXADECIMAL = frozenset("0123456789abcdef")
_NAME_CHARACTERS = 20
_HASH_DIGITS = 8
_PIDS_LOOKED_AT = 4  # of one container, until one shows what is mounted
_WALK_S = 0.5
_OWN = "calabash-"


def pod_digits(pod_uid: str) -> str:
    """What the identifiers of everything that a pod holds begin with, before the first ``-``."""
    digits = pod_uid.replace("-", "").lower()
    if len(digits) == _UID_DIGITS and set(digits) <= _HEXADECIMAL:
        return digits
    return hashlib.sha256(pod_uid.encode()).hexdigest()[:_UID_DIGITS]  # static pods have a hash for a UID


def container_allocation(pod_uid: str, container: str) -> AllocationId:
    """The identifier of what a container of a pod holds: at most 63 characters, the same whenever it is asked."""
    digits = pod_digits(pod_uid)
    mark = hashlib.sha256(f"{pod_uid}/{container}".encode()).hexdigest()[:_HASH_DIGITS]
    readable = "".join(c for c in container.lower() if c.isalnum() and c.isascii())[:_NAME_CHARACTERS]
    return AllocationId(f"{digits}-{readable}-{mark}" if readable else f"{digits}-{mark}")


def _own(allocation: AllocationId) -> str:
    """The name of the group of what serves a container from outside."""
    return _OWN + allocation


class ContainerMembership(GroupMembership):
    """The containers of one node. See ``membership.Membership``; groups of containers are only found, those of workers made.

    Args:
        slots: the directory that the slots are mounted below.
        now_s: a clock that only goes forward.
    """

    def __init__(
        self, hierarchy: ContainerHierarchy, slots: Path, *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._hierarchy = hierarchy
        self._slots = slots
        self._now_s = now_s
        self._lock = threading.Lock()
        self._found: dict[AllocationId, Path] = {}
        self._pods: dict[str, Path] = {}
        self._walked_s = -math.inf

    def prepare(self, allocation: AllocationId) -> None:
        del allocation  # the runtime makes the group

    def enter(self, allocation: AllocationId, process: Process) -> None:
        """Only of what we have started to serve a container: who else is a member its container decides."""
        pod = self._pod_now(allocation.partition("-")[0])
        if pod is None or not is_slot_name(allocation):
            raise CalabashError(
                f"the pod of {allocation} has no control group yet", reason=Reason.NOT_FOUND, hint="it is tried again"
            )
        directory = pod / _own(allocation)
        try:
            join_pod(self._hierarchy, pod, directory.name, process.pid)
        except OSError as error:
            raise CalabashError(
                f"cannot move process {process.pid} into the pod of {allocation}: {error.strerror}",
                reason=Reason.NOT_FOUND if isinstance(error, ProcessLookupError) else Reason.NOT_PERMITTED,
            ) from error
        with self._lock:
            self._found[allocation] = directory

    def allocation_of(self, pid: int) -> AllocationId | None:
        name = group_names(pid, self._hierarchy.controller)
        if not name:
            return None
        with self._lock:
            known = {directory.name: allocation for allocation, directory in self._found.items()}
        for part in name.split("/"):  # from outside inwards: groups in a container bear what names its tenant likes
            if part in known:
                return known[part]
        if "pod" not in name:
            return None
        mounted = mounted_devices(pid)
        return next((a for a, device in self._devices().items() if device in mounted), None)

    def remove(self, allocation: AllocationId) -> bool:
        self._walked_s = -math.inf  # nobody may have been overlooked now
        group = self._group(allocation)
        if group is not None and group.populated():
            return False
        if group is not None and group.directory.name == _own(allocation):
            with contextlib.suppress(OSError):  # a kubelet removes it with the pod
                group.remove()
        with self._lock:
            self._found.pop(allocation, None)
        return True

    def close(self) -> None:
        """Whoever runs keeps running."""

    def adopt(self, records: Iterable[AllocationRecord]) -> set[AllocationId]:
        del records
        found = {name for name in self._devices() if self.populated(name)}
        for name in found:
            self.freeze(name, False)  # whoever stopped it is not there to continue it
        return found

    def sandbox_since_s(self, pod_uid: str) -> float:
        """Since when a pod runs as it does now: the start of its oldest process, in seconds since the epoch; 0: of none.

        A sandbox that is made again, as after a restart of the machine, runs everything anew, init containers too.
        """
        oldest = self._oldest(self._pod(pod_digits(pod_uid)))
        return began_s(oldest) if oldest is not None else 0.0

    def sandbox(self, pod_uid: str) -> Process | None:
        """The process that a pod lives as long as: its oldest; None: it has none. Looks through all groups if need be."""
        return self._oldest(self._pod_now(pod_digits(pod_uid)))

    # -- finding -----------------------------------------------------------------------------------------------------

    def _oldest(self, pod: Path | None) -> Process | None:
        """Of the containers of a pod; who serves them from outside may be older than a sandbox that was made again."""
        groups = (
            [group for group in container_groups(pod) if not group.name.startswith(_OWN)] if pod is not None else []
        )
        pids = [pid for group in groups for pid in self._hierarchy.group(group).pids()[:_PIDS_LOOKED_AT]]
        found = (process for pid in pids if (process := identify(pid)) is not None)
        return min(found, key=lambda process: (process.start_time, process.pid), default=None)

    def _group(self, allocation: AllocationId) -> Cgroup | None:
        """The group of its container; a container that was started again has a new one."""
        if not is_slot_name(allocation):
            return None
        with self._lock:
            known = self._found.get(allocation)
        if known is not None and known.is_dir():
            return self._hierarchy.group(known)
        found = self._find(allocation)
        with self._lock:
            if found is None:
                self._found.pop(allocation, None)
                return None
            self._found[allocation] = found
        return self._hierarchy.group(found)

    def _find(self, allocation: AllocationId) -> Path | None:
        device = self._device(allocation)
        pod = self._pod(allocation.partition("-")[0])
        if pod is None:
            return None
        if (pod / _own(allocation)).is_dir():
            return pod / _own(allocation)
        if device is None:
            return None
        for directory in container_groups(pod):
            pids = self._hierarchy.group(directory).pids()[:_PIDS_LOOKED_AT]
            if any(device in mounted_devices(pid) for pid in pids):
                return directory
        return None

    def _pod(self, digits: str) -> Path | None:
        """The group of a pod. A pod without one is asked for ten times a second: all groups are looked through seldom."""
        known = self._pods.get(digits)
        if known is not None and known.is_dir():
            return known
        now_s = self._now_s()
        if now_s - self._walked_s < _WALK_S:
            return None
        self._walked_s = now_s
        self._pods = pod_groups(self._hierarchy)
        return self._pods.get(digits)

    def _pod_now(self, digits: str) -> Path | None:
        """The same, whenever the groups were looked through last."""
        self._walked_s = -math.inf
        return self._pod(digits)

    def _device(self, allocation: AllocationId) -> int | None:
        """Number of the file system that is its slot; None when it has none of its own."""
        path = self._slots / allocation
        try:
            device = path.stat().st_dev
            return device if device != self._slots.stat().st_dev else None
        except OSError:
            return None

    def _devices(self) -> dict[AllocationId, int]:
        try:
            names = [AllocationId(name) for name in os.listdir(self._slots) if is_slot_name(name)]
        except OSError:
            return {}
        return {name: device for name in names if (device := self._device(name)) is not None}
