"""Membership by the control groups of containers, which the kubelet and the container runtime create.

The identifier of an allocation begins with the UID of its pod (``container_allocation``), which names the pod's group.
The container of an allocation is found by its slot: every slot is a separate file system that is mounted in that
container only. A tenant can neither leave its container's group nor mount the slot of another allocation.

In mode brokered, a worker process of the pool uses the card in place of the container. Then the worker is the member:
it has a separate group beside the groups of the containers, under a name that no runtime uses.

An allocated resource claim is one allocation, whose identifier names the claim. All containers that have its slot
mounted are its members, in any pod. The ``users`` callback returns the pods that may use it. Containers start and end
while the claim is held, so they are searched for again every ``_CLAIM_POLL_S``. ``users`` may not know a new pod for
some seconds; its containers are then found when a driver lists one of their processes on a card. A worker that serves a
claim has its group beside the groups of the pods.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from calabash.adapters.host.calendar_steps import CalendarSteps
from calabash.adapters.host.cgroups.container_groups import (
    ContainerHierarchy,
    container_groups,
    group_names,
    join_pod,
    mounted_devices,
    outer_names,
    pod_groups,
)
from calabash.adapters.host.cgroups.groups import Cgroup
from calabash.adapters.host.failures import failure
from calabash.adapters.host.processes import Process, identify
from calabash.model.allocation import AllocationRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.node.membership.cgroups import GroupMembership
from calabash.node.slots.names import SlotNames, is_slot_name

_UID_DIGITS = 32
_HEXADECIMAL = frozenset("0123456789abcdef")
_NAME_CHARACTERS = 20
_HASH_DIGITS = 8
_PIDS_TRIED = 4  # processes of one container that are tried until one shows its mounts
_WALK_S = 0.5
_CLAIM_POLL_S = 1.0
_OWN = "calabash-"
_CLAIM = "claim-"


def pod_digits(pod_uid: str) -> str:
    """Return the 32 hexadecimal digits with which the identifiers of all allocations of a pod begin, up to a ``-``."""
    digits = pod_uid.replace("-", "").lower()
    if len(digits) == _UID_DIGITS and set(digits) <= _HEXADECIMAL:
        return digits
    return hashlib.sha256(pod_uid.encode()).hexdigest()[:_UID_DIGITS]  # static pods have a hash for a UID


def container_allocation(pod_uid: str, container: str) -> AllocationId:
    """Return the identifier of a container's allocation, which depends on the arguments only; at most 63 characters."""
    digits = pod_digits(pod_uid)
    mark = hashlib.sha256(f"{pod_uid}/{container}".encode()).hexdigest()[:_HASH_DIGITS]
    readable = "".join(c for c in container.lower() if c.isalnum() and c.isascii())[:_NAME_CHARACTERS]
    return AllocationId(f"{digits}-{readable}-{mark}" if readable else f"{digits}-{mark}")


def claim_allocation(claim_uid: str) -> AllocationId:
    """Return the identifier of the allocation of a claim; all pods and containers that use the claim share it."""
    return AllocationId(_CLAIM + pod_digits(claim_uid))


def is_of_claim(allocation: AllocationId) -> bool:
    """Return True if the allocation belongs to a resource claim."""
    return allocation.startswith(_CLAIM)


class PodGroups:
    """Control groups of the pods of a node, by the digits of their UIDs; the hierarchy is walked at most twice a second."""

    def __init__(self, hierarchy: ContainerHierarchy, now_s: Callable[[], float]) -> None:
        self._hierarchy = hierarchy
        self._now_s = now_s
        self._pods: dict[str, Path] = {}
        self._walked_s = -math.inf

    def find(self, digits: str) -> Path | None:
        """Return the group of a pod; None if it has none. May be called often."""
        known = self._pods.get(digits)
        if known is not None and known.is_dir():
            return known
        return self.all().get(digits)

    def all(self) -> dict[str, Path]:
        """Return the control groups of all pods by the digits of their UIDs, as found at most half a second ago."""
        now_s = self._now_s()
        if now_s - self._walked_s >= _WALK_S:
            self._walked_s = now_s
            self._pods = pod_groups(self._hierarchy)
        return self._pods

    def expire(self) -> None:
        """Make the next call of ``all`` walk the hierarchy."""
        self._walked_s = -math.inf

    def root(self) -> Path | None:
        """Return the kubelet's group that contains the groups of all pods; None while no pod is known."""
        pod = next(iter(self._pods.values()), None)
        if pod is None:
            return None
        above = [group for group in pod.parents if group.is_relative_to(self._hierarchy.directory)]
        return next((group for group in reversed(above) if group.name.startswith("kubepods")), pod.parent)


class ContainerMembership(GroupMembership):
    """Membership of the containers of one node; see ``Membership``. Only groups of workers are created here.

    Args:
        slots: the directory below which the slots are mounted.
        names: names of the slots in it.
        users: returns the UIDs of the pods that may use a claim's allocation; None: unknown, so any pod may.
        now_s: monotonic clock.
        calendar: history of the calendar, which knows when a process was started.
    """

    def __init__(
        self,
        hierarchy: ContainerHierarchy,
        slots: Path,
        *,
        names: SlotNames | None = None,
        users: Callable[[AllocationId], Collection[str] | None] = lambda _claim: None,
        now_s: Callable[[], float] = time.monotonic,
        calendar: CalendarSteps | None = None,
    ) -> None:
        self._hierarchy = hierarchy
        self._slots = slots
        self._calendar = calendar or CalendarSteps()
        self._names = names or SlotNames()
        self._users = users
        self._now_s = now_s
        self._lock = threading.Lock()
        self._found: dict[AllocationId, tuple[Path, ...]] = {}
        self._looked_s: dict[AllocationId, float] = {}  # when containers of a claim were last searched for
        self._pods = PodGroups(hierarchy, now_s)

    def prepare(self, allocation: AllocationId) -> None:
        del allocation  # the runtime makes the group

    def group(self, allocation: AllocationId) -> int:
        del allocation  # a container's group is made after its slot
        return 0

    def enter(self, allocation: AllocationId, process: Process) -> None:
        """Move a worker process into the group of workers of an allocation. Containers become members by their runtime.

        Raises:
            CalabashError: NOT_FOUND if the pod has no control group yet, or the move fails.
        """
        beside = self._worker_parent(allocation)
        if beside is None or not is_slot_name(allocation):
            raise CalabashError(
                f"the pod of {allocation} has no control group yet",
                reason=Reason.NOT_FOUND,
                hint="retried automatically",
            )
        directory = beside / self._worker_group(allocation)
        try:
            join_pod(self._hierarchy, beside, directory.name, process.pid)
        except OSError as error:
            raise failure(error, f"cannot move process {process.pid} into the pod of {allocation}") from error
        with self._lock:
            self._found[allocation] = (directory,)

    def allocation_of(self, pid: int) -> AllocationId | None:
        name = group_names(pid, self._hierarchy.controller)
        if not name:
            return None
        with self._lock:
            known = {group.name: allocation for allocation, groups in self._found.items() for group in groups}
        parts = outer_names(name)
        for part in parts:
            if part in known:
                return known[part]
        if "pod" not in name:
            return None
        mounted = mounted_devices(pid)
        found = next((a for a, device in self._devices().items() if device in mounted), None)
        if found is not None and is_of_claim(found):
            self._note_container(found, parts)
        return found

    def remove(self, allocation: AllocationId) -> bool:
        self._pods.expire()  # every container must be found now
        groups = self._groups(allocation, everywhere=True)
        if any(group.populated() for group in groups):
            return False
        for group in groups:
            if group.directory.name == self._worker_group(allocation):
                with contextlib.suppress(OSError):  # the kubelet may have removed it with the pod
                    group.remove()
        with self._lock:
            self._found.pop(allocation, None)
            self._looked_s.pop(allocation, None)
        return True

    def close(self) -> None:
        """Do nothing: programs keep running."""

    def adopt(self, records: Iterable[AllocationRecord]) -> set[AllocationId]:
        del records
        found = {name for name in self._devices() if self.populated(name)}
        for name in found:
            self.freeze(name, False)  # the agent that froze the group is gone
        return found

    def sandbox_since_s(self, pod_uid: str) -> float:
        """Return the start of the oldest process of a pod's containers, in seconds since the epoch; 0 if it has none.

        A later start than before shows that the pod's sandbox was created again, for example after a restart of the
        machine. Then all its containers run again, including init containers.
        """
        oldest = self._oldest(self._pods.find(pod_digits(pod_uid)))
        return self._calendar.began_s(oldest) if oldest is not None else 0.0

    def sandbox(self, pod_uid: str) -> Process | None:
        """Return the oldest process of a pod's containers, which lives as long as the pod; None if it has none.

        Walks the hierarchy.
        """
        self._pods.expire()
        return self._oldest(self._pods.find(pod_digits(pod_uid)))

    def _worker_group(self, allocation: AllocationId) -> str:
        """Return the name of the group of the worker of an allocation."""
        return _OWN + self._names.name_of(allocation)

    # -- finding -----------------------------------------------------------------------------------------------------

    def _note_container(self, allocation: AllocationId, parts: Sequence[str]) -> None:
        """Add a container to the members of an allocation.

        Args:
            parts: components of the path of a process's control group, one of which is the container's group.
        """
        there = {group.name: group for pod in self._pods.all().values() for group in container_groups(pod)}
        group = next((there[part] for part in parts if part in there), None)
        if group is not None:
            with self._lock:
                self._found[allocation] = tuple(dict.fromkeys((*self._found.get(allocation, ()), group)))

    def _oldest(self, pod: Path | None) -> Process | None:
        """Return the oldest process of the containers of a pod.

        Workers are left out: they may be older than a sandbox that was created again.
        """
        groups = (
            [group for group in container_groups(pod) if not group.name.startswith(_OWN)] if pod is not None else []
        )
        pids = [pid for group in groups for pid in self._hierarchy.group(group).pids()[:_PIDS_TRIED]]
        found = (process for pid in pids if (process := identify(pid)) is not None)
        return min(found, key=lambda process: (process.start_time, process.pid), default=None)

    def _groups(self, allocation: AllocationId, *, everywhere: bool = False) -> Sequence[Cgroup]:
        """Return the groups of the containers and the worker of an allocation; a restarted container has a new group.

        Args:
            everywhere: search all pods for containers of a claim, not only those that ``users`` names.
        """
        if not is_slot_name(allocation):
            return ()
        with self._lock:
            known = tuple(group for group in self._found.get(allocation, ()) if group.is_dir())
        if is_of_claim(allocation):
            found = known if known and not everywhere and self._is_fresh(allocation) else None
            if found is None:
                found = self._find_of_claim(allocation, known, everywhere=everywhere)
        else:
            found = known or self._find(allocation)
        with self._lock:
            if found:
                self._found[allocation] = found
            else:
                self._found.pop(allocation, None)
        return [self._hierarchy.group(directory) for directory in found]

    def _is_fresh(self, allocation: AllocationId) -> bool:
        return self._now_s() - self._looked_s.get(allocation, -math.inf) < _CLAIM_POLL_S

    def _find(self, allocation: AllocationId) -> tuple[Path, ...]:
        pod = self._pods.find(allocation.partition("-")[0])
        if pod is None:
            return ()
        if (pod / self._worker_group(allocation)).is_dir():
            return (pod / self._worker_group(allocation),)
        return tuple(self._containers(allocation, (pod,), ()))[:1]

    def _find_of_claim(
        self, allocation: AllocationId, known: tuple[Path, ...], *, everywhere: bool
    ) -> tuple[Path, ...]:
        self._looked_s[allocation] = self._now_s()
        users = None if everywhere else self._users(allocation)
        if users is None:
            pods = tuple(self._pods.all().values())
        else:
            pods = tuple(pod for uid in users if (pod := self._pods.find(pod_digits(uid))) is not None)
        beside = self._pods.root()
        own = (
            ()
            if beside is None or not (beside / self._worker_group(allocation)).is_dir()
            else (beside / self._worker_group(allocation),)
        )
        return tuple(dict.fromkeys((*own, *known, *self._containers(allocation, pods, known))))

    def _containers(self, allocation: AllocationId, pods: Iterable[Path], known: Collection[Path]) -> Iterable[Path]:
        """Yield the groups of containers that have the slot mounted and are not in ``known``."""
        device = self._device(allocation)
        if device is None:
            return
        for directory in (group for pod in pods for group in container_groups(pod) if group not in known):
            pids = self._hierarchy.group(directory).pids()[:_PIDS_TRIED]
            if any(device in mounted_devices(pid) for pid in pids):
                yield directory

    def _worker_parent(self, allocation: AllocationId) -> Path | None:
        """Return the group in which the group of the worker of an allocation is created."""
        self._pods.expire()
        if not is_of_claim(allocation):
            return self._pods.find(allocation.partition("-")[0])
        return self._pods.root() if self._pods.all() else None

    def _device(self, allocation: AllocationId) -> int | None:
        """Return the device number of the file system of a slot; None if the slot is no separate file system."""
        path = self._slots / self._names.name_of(allocation)
        try:
            device = path.stat().st_dev
            return device if device != self._slots.stat().st_dev else None
        except OSError:
            return None

    def _devices(self) -> dict[AllocationId, int]:
        try:
            names = [self._names.allocation_of(name) for name in os.listdir(self._slots) if is_slot_name(name)]
        except OSError:
            return {}
        return {name: device for name in names if (device := self._device(name)) is not None}
