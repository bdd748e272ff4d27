"""Membership by the groups of containers: the kubelet and the runtime make them, here they are only found and read.

The identifier of an allocation begins with the UID of its pod (``container_allocation``), which names the pod's group.
Which of its containers is the allocation's is seen by the slot: every slot is a file system of its own, and it is mounted
in that container alone. A tenant can neither leave its container's group nor mount somebody else's slot.

Where a worker of ours uses the card in a container's stead, the worker is the allocation's: it has a group of its own beside
those of the containers, under a name that no runtime gives.

What a claim was allocated is one allocation, and whatever containers have its slot mounted are its members, in whichever pods:
its identifier names the claim, and whoever knows the claim says which pods may use it. They come and go while it is held, so
they are looked for again and again. A pod that came since is not known to use it for some seconds: its containers are found
as soon as one of their processes is met on a card. A worker that serves a claim has its group beside those of the pods.
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
from calabash.adapters.host.processes import Process, began_s, identify
from calabash.model.allocation import AllocationRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.node.membership.cgroups import GroupMembership
from calabash.node.slots.names import SlotNames, is_slot_name

_UID_DIGITS = 32
_HEXADECIMAL = frozenset("0123456789abcdef")
_NAME_CHARACTERS = 20
_HASH_DIGITS = 8
_PIDS_LOOKED_AT = 4  # of one container, until one shows what is mounted
_WALK_S = 0.5
_CLAIM_LOOK_S = 1.0
_OWN = "calabash-"
_CLAIM = "claim-"


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


def claim_allocation(claim_uid: str) -> AllocationId:
    """The identifier of what a claim was allocated: one for all pods and containers that use it."""
    return AllocationId(_CLAIM + pod_digits(claim_uid))


def is_of_claim(allocation: AllocationId) -> bool:
    """Whether it is what a claim was allocated."""
    return allocation.startswith(_CLAIM)


class PodGroups:
    """The groups of the pods of a node, by the digits of their UIDs. All groups are looked through seldom."""

    def __init__(self, hierarchy: ContainerHierarchy, now_s: Callable[[], float]) -> None:
        self._hierarchy = hierarchy
        self._now_s = now_s
        self._pods: dict[str, Path] = {}
        self._walked_s = -math.inf

    def of(self, digits: str) -> Path | None:
        """The group of a pod; one without a group may be asked for ten times a second."""
        known = self._pods.get(digits)
        if known is not None and known.is_dir():
            return known
        return self.all().get(digits)

    def all(self) -> dict[str, Path]:
        """All of them, as of the last half second."""
        now_s = self._now_s()
        if now_s - self._walked_s >= _WALK_S:
            self._walked_s = now_s
            self._pods = pod_groups(self._hierarchy)
        return self._pods

    def expire(self) -> None:
        """What is asked next is looked for anew."""
        self._walked_s = -math.inf

    def root(self) -> Path | None:
        """The group that those of all pods are below: the kubelet's own; None while there is no pod."""
        pod = next(iter(self._pods.values()), None)
        if pod is None:
            return None
        above = [group for group in pod.parents if group.is_relative_to(self._hierarchy.directory)]
        return next((group for group in reversed(above) if group.name.startswith("kubepods")), pod.parent)


class ContainerMembership(GroupMembership):
    """The containers of one node. See ``membership.Membership``; groups of containers are only found, those of workers made.

    Args:
        slots: the directory that the slots are mounted below.
        names: what they are called there.
        users: the UIDs of the pods that may use what a claim was allocated; None: it is not known, so any pod may.
        now_s: a clock that only goes forward.
        began_s: when a process was started, by the calendar as it was then.
    """

    def __init__(
        self,
        hierarchy: ContainerHierarchy,
        slots: Path,
        *,
        names: SlotNames | None = None,
        users: Callable[[AllocationId], Collection[str] | None] = lambda _claim: None,
        now_s: Callable[[], float] = time.monotonic,
        began_s: Callable[[Process], float] = began_s,
    ) -> None:
        self._hierarchy = hierarchy
        self._slots = slots
        self._began_s = began_s
        self._names = names or SlotNames()
        self._users = users
        self._now_s = now_s
        self._lock = threading.Lock()
        self._found: dict[AllocationId, tuple[Path, ...]] = {}
        self._looked_s: dict[AllocationId, float] = {}  # when containers of a claim were last looked for
        self._pods = PodGroups(hierarchy, now_s)

    def prepare(self, allocation: AllocationId) -> None:
        del allocation  # the runtime makes the group

    def group(self, allocation: AllocationId) -> int:
        del allocation  # a container's group is made after its slot
        return 0

    def enter(self, allocation: AllocationId, process: Process) -> None:
        """Only of what we have started to serve a container: who else is a member its container decides."""
        beside = self._beside(allocation)
        if beside is None or not is_slot_name(allocation):
            raise CalabashError(
                f"the pod of {allocation} has no control group yet", reason=Reason.NOT_FOUND, hint="it is tried again"
            )
        directory = beside / self._own(allocation)
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
            self._met(found, parts)
        return found

    def remove(self, allocation: AllocationId) -> bool:
        self._pods.expire()  # nobody may have been overlooked now
        groups = self._groups(allocation, everywhere=True)
        if any(group.populated() for group in groups):
            return False
        for group in groups:
            if group.directory.name == self._own(allocation):
                with contextlib.suppress(OSError):  # a kubelet removes it with the pod
                    group.remove()
        with self._lock:
            self._found.pop(allocation, None)
            self._looked_s.pop(allocation, None)
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
        oldest = self._oldest(self._pods.of(pod_digits(pod_uid)))
        return self._began_s(oldest) if oldest is not None else 0.0

    def sandbox(self, pod_uid: str) -> Process | None:
        """The process that a pod lives as long as: its oldest; None: it has none. Looks through all groups if need be."""
        self._pods.expire()
        return self._oldest(self._pods.of(pod_digits(pod_uid)))

    def _own(self, allocation: AllocationId) -> str:
        """Name of the group of what serves a container from outside."""
        return _OWN + self._names.name_of(allocation)

    # -- finding -----------------------------------------------------------------------------------------------------

    def _met(self, allocation: AllocationId, parts: Sequence[str]) -> None:
        """A container has it: the one whose group is among these."""
        there = {group.name: group for pod in self._pods.all().values() for group in container_groups(pod)}
        group = next((there[part] for part in parts if part in there), None)
        if group is not None:
            with self._lock:
                self._found[allocation] = tuple(dict.fromkeys((*self._found.get(allocation, ()), group)))

    def _oldest(self, pod: Path | None) -> Process | None:
        """Of the containers of a pod; who serves them from outside may be older than a sandbox that was made again."""
        groups = (
            [group for group in container_groups(pod) if not group.name.startswith(_OWN)] if pod is not None else []
        )
        pids = [pid for group in groups for pid in self._hierarchy.group(group).pids()[:_PIDS_LOOKED_AT]]
        found = (process for pid in pids if (process := identify(pid)) is not None)
        return min(found, key=lambda process: (process.start_time, process.pid), default=None)

    def _groups(self, allocation: AllocationId, *, everywhere: bool = False) -> Sequence[Cgroup]:
        """Those of its containers; a container that was started again has a new one.

        Args:
            everywhere: look through all pods for containers of a claim, whoever is said to use it.
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
        return self._now_s() - self._looked_s.get(allocation, -math.inf) < _CLAIM_LOOK_S

    def _find(self, allocation: AllocationId) -> tuple[Path, ...]:
        pod = self._pods.of(allocation.partition("-")[0])
        if pod is None:
            return ()
        if (pod / self._own(allocation)).is_dir():
            return (pod / self._own(allocation),)
        return tuple(self._containers(allocation, (pod,), ()))[:1]

    def _find_of_claim(
        self, allocation: AllocationId, known: tuple[Path, ...], *, everywhere: bool
    ) -> tuple[Path, ...]:
        self._looked_s[allocation] = self._now_s()
        users = None if everywhere else self._users(allocation)
        if users is None:
            pods = tuple(self._pods.all().values())
        else:
            pods = tuple(pod for uid in users if (pod := self._pods.of(pod_digits(uid))) is not None)
        beside = self._pods.root()
        own = (
            () if beside is None or not (beside / self._own(allocation)).is_dir() else (beside / self._own(allocation),)
        )
        return tuple(dict.fromkeys((*own, *known, *self._containers(allocation, pods, known))))

    def _containers(self, allocation: AllocationId, pods: Iterable[Path], known: Collection[Path]) -> Iterable[Path]:
        """The groups of containers that have its slot mounted; not those that are ``known``."""
        device = self._device(allocation)
        if device is None:
            return
        for directory in (group for pod in pods for group in container_groups(pod) if group not in known):
            pids = self._hierarchy.group(directory).pids()[:_PIDS_LOOKED_AT]
            if any(device in mounted_devices(pid) for pid in pids):
                yield directory

    def _beside(self, allocation: AllocationId) -> Path | None:
        """Where the group of what serves an allocation from outside is made."""
        self._pods.expire()
        if not is_of_claim(allocation):
            return self._pods.of(allocation.partition("-")[0])
        return self._pods.root() if self._pods.all() else None

    def _device(self, allocation: AllocationId) -> int | None:
        """Number of the file system that is its slot; None when it has none of its own."""
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
