"""Guard of device access: containers may open the devices that they were granted, and no others.

A container can get devices that the agent did not grant: those that the configuration of the container runtime, an
environment variable of the image or the spec of a privileged pod names. The agent therefore denies access to ungranted
devices in the cgroups of pods:

* A pod that asks for no devices is denied all devices of the driver. The rule is set in the cgroup of the pod, which
  exists before its containers.
* In a pod that asks for devices, a container with a slice is denied all devices except those of its slices. A container
  that asks for no devices is denied all of them.

Pods of exempt namespaces are trusted and not guarded. Pods with ResourceClaims are not guarded because only the
container runtime knows which containers use a claim. Static pods are not guarded because the agent does not know them
by their UID. A process that opened a denied device before the rule was set is killed.
"""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from calabash.adapters.host.cgroups.container_groups import container_groups
from calabash.adapters.host.cgroups.device_access import DeviceHierarchy, deny_devices, majors_of
from calabash.adapters.host.cgroups.groups import Cgroup
from calabash.adapters.host.processes import identify, send_signal
from calabash.adapters.kube.objects.core import Container, Pod
from calabash.kubernetes.dialects.nvidia import GPU
from calabash.kubernetes.node_plugin.containers.edits import device_nodes
from calabash.kubernetes.node_plugin.pods import NodePods
from calabash.kubernetes.objects.names import GPUS, PLAN
from calabash.model.allocation import AllocationRecord
from calabash.model.request import AllocationId
from calabash.node.agent import NodeAgent
from calabash.node.membership.container import PodGroups, container_allocation

EVERY_NAMESPACE = "*"
DRIVERS = ("nvidia", "nvidia-frontend", "nvidia-uvm", "nvidia-caps")
CARDS = ("nvidia", "nvidia-frontend")  # the major whose minors are devices and the control nodes
CONTROL_MINORS = frozenset({254, 255})  # nvidia-modeset and nvidiactl
_FILES_LOOKED_AT = 4096

log = structlog.get_logger(__name__)

Denied = Mapping[int, frozenset[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSettings:
    """Cgroup hierarchies in which access to devices is denied, and exempt namespaces.

    Args:
        hierarchy: cgroup hierarchy that controls access to devices.
        groups: root directory of the hierarchy that contains the cgroups of pods. In cgroup v1 the two hierarchies
            differ.
        exempt: namespaces whose pods are not guarded.
    """

    hierarchy: DeviceHierarchy
    groups: Path
    exempt: frozenset[str]


class GuardedNode(Protocol):
    """The node whose pods are guarded."""

    def pod_groups(self) -> Mapping[str, Path]:
        """Return the cgroups of all pods, by the hexadecimal digits of the pods' UIDs."""
        ...

    def pod(self, digits: str) -> Pod | None:
        """Return the pod whose UID has these digits; None if the agent does not know the pod."""
        ...

    def record(self, allocation: AllocationId) -> AllocationRecord | None:
        """Return the record of a container's allocation; None if it has no allocation."""
        ...

    def minors(self, record: AllocationRecord) -> Collection[int]:
        """Return the minor device numbers of the devices of an allocation."""
        ...

    def majors(self) -> Mapping[str, int]:
        """Return the major device numbers of the loaded drivers by name; empty if no driver is loaded."""
        ...


class AgentNode:
    """The node of an agent; implements ``GuardedNode``.

    Args:
        agent: grants and ends allocations on the node.
        pods: the pods of the node.
        groups: the cgroups of the pods.
        host: directory in which the host's file system is mounted.
    """

    def __init__(self, agent: NodeAgent, pods: NodePods, groups: PodGroups, host: Path) -> None:
        self._agent, self._pods, self._groups, self._host = agent, pods, groups, host

    def pod_groups(self) -> Mapping[str, Path]:
        return self._groups.all()

    def pod(self, digits: str) -> Pod | None:
        return self._pods.known(digits)

    def record(self, allocation: AllocationId) -> AllocationRecord | None:
        return self._agent.record(allocation)

    def minors(self, record: AllocationRecord) -> list[int]:
        wanted = [part.device for part in record.placement.slices]
        nodes = device_nodes(self._host, [state.device for state in self._agent.devices()], wanted)
        return [os.minor((self._host / node.relative_to("/")).stat().st_rdev) for node in nodes]

    def majors(self) -> Mapping[str, int]:
        return majors_of(DRIVERS)


class DeviceGuard:
    """Deny the pods of one node access to ungranted devices. Methods must be called from one thread.

    Args:
        settings: cgroup hierarchies and exempt namespaces.
        node: the node whose pods are guarded.
    """

    def __init__(self, settings: GuardSettings, node: GuardedNode) -> None:
        self._settings = settings
        self._node = node
        self._closed: set[Path] = set()
        self._failed: set[Path] = set()

    def reconcile(self) -> int:
        """Deny ungranted devices to pods that are not restricted yet; return the number of killed processes."""
        majors = self._node.majors()
        if not majors:
            return 0
        ended, seen = 0, set()
        for digits, group in self._node.pod_groups().items():
            pod = self._node.pod(digits)
            if pod is None or pod.metadata.namespace in self._settings.exempt or pod.spec.resource_claims:
                continue
            for directory, denied in self._rules(pod, group, majors):
                seen.add(directory)
                if directory not in self._closed:
                    ended += self._close(directory, denied, pod)
        self._closed &= seen
        self._failed &= seen
        return ended

    def _rules(self, pod: Pod, group: Path, majors: Mapping[str, int]) -> list[tuple[Path, Denied]]:
        everything: Denied = {major: frozenset() for major in majors.values()}
        if not asks_for_devices(pod):
            return [(group, everything)]
        statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
        names = {one.container_id.rpartition("/")[2]: one.name for one in statuses if one.container_id}
        rules: list[tuple[Path, Denied]] = []
        for directory in container_groups(group):
            name = next((name for number, name in names.items() if number in directory.name), None)
            if name is None:  # the sandbox, a worker, or a container that is not in the known status of the pod
                continue
            record = self._node.record(container_allocation(pod.metadata.uid, name))
            if record is not None:
                allowed = CONTROL_MINORS | frozenset(self._node.minors(record))
                rules.append((directory, {majors[driver]: allowed for driver in CARDS if driver in majors}))
            elif not _asks(_container(pod, name)):
                rules.append((directory, everything))
        return rules

    def _close(self, directory: Path, denied: Denied, pod: Pod) -> int:
        settings = self._settings
        below = directory.relative_to(settings.groups)
        try:
            deny_devices(settings.hierarchy, settings.hierarchy.directory / below, denied)
        except OSError as error:
            if directory not in self._failed and not isinstance(error, FileNotFoundError):
                self._failed.add(directory)
                log.warning(
                    "cannot deny devices to a pod",
                    pod=f"{pod.metadata.namespace}/{pod.metadata.name}",
                    error=error.strerror,
                )
            return 0
        self._closed.add(directory)
        ended = end_users(directory, denied)
        if ended:
            log.warning(
                "killed processes that had opened devices without a grant",
                pod=f"{pod.metadata.namespace}/{pod.metadata.name}",
                processes=ended,
            )
        return ended


def asks_for_devices(pod: Pod) -> bool:
    """Return True if the pod has a plan, or a container asks for ``calabash.dev/gpus`` or ``nvidia.com/gpu``."""
    return PLAN in pod.metadata.annotations or any(map(_asks, (*pod.spec.init_containers, *pod.spec.containers)))


def _asks(container: Container | None) -> bool:
    return container is not None and any(name in container.resources.limits for name in (GPUS, GPU))


def _container(pod: Pod, name: str) -> Container | None:
    return next((c for c in (*pod.spec.init_containers, *pod.spec.containers) if c.name == name), None)


def end_users(group: Path, denied: Denied) -> int:
    """Kill the processes of a cgroup and its descendants that have a denied device open; return their number.

    Args:
        denied: major numbers of the devices to which access is denied, each with the minor numbers that are excepted.
    """
    found = (identify(pid) for pid in Cgroup(group).pids())
    users = [process for process in found if process is not None and _has_open(process.pid, denied)]
    return sum(send_signal(process, signal.SIGKILL) for process in users)


def _has_open(pid: int, denied: Denied) -> bool:
    try:
        names = os.listdir(f"/proc/{pid}/fd")[:_FILES_LOOKED_AT]
    except OSError:
        return False
    for name in names:
        try:
            found = os.stat(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if stat.S_ISCHR(found.st_mode):
            allowed = denied.get(os.major(found.st_rdev))
            if allowed is not None and os.minor(found.st_rdev) not in allowed:
                return True
    return False
