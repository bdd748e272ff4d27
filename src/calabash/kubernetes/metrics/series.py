"""External metrics: their values from ``GpuNode`` objects (agents) and ``Queue`` objects (planner)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from calabash.adapters.kube import Kind, KubeStruct, ObjectMeta
from calabash.adapters.kube.objects.resources import GPU_NODE, KubeQueueStatus
from calabash.model.errors import CalabashError, Reason


class UsedSlice(KubeStruct, frozen=True):
    """The slice of a container with its allocated and its used amounts; a used amount is None if it is not reported."""

    pod_uid: str = ""
    memory_mib: int = 0
    core_percent: int = 0
    memory_used_mib: int | None = None
    core_used_percent: int | None = None


class UsedDevice(KubeStruct, frozen=True):
    """A device in the status of a ``GpuNode``: its memory, and the slices of it."""

    memory_mib: int = 0
    slices: tuple[UsedSlice, ...] = ()


class UsedDevices(KubeStruct, frozen=True):
    """The fields of a ``GpuNode``'s status that this program reads."""

    devices: tuple[UsedDevice, ...] = ()


class UsedNode(KubeStruct, frozen=True):
    """The fields of a ``GpuNode`` that this program reads."""

    metadata: ObjectMeta
    status: UsedDevices = msgspec.field(default_factory=UsedDevices)


USED_NODE = Kind(
    api_version=GPU_NODE.api_version, name=GPU_NODE.name, plural=GPU_NODE.plural, namespaced=False, type=UsedNode
)


@dataclass(slots=True)
class PodUse:
    """Allocated and used amounts of a pod, summed over those of its slices whose use is reported."""

    core_percent: int = 0
    core_used_percent: int = 0
    memory_mib: int = 0
    memory_used_mib: int = 0

    def of_compute(self) -> float | None:
        """Return used compute in percent of allocated compute; over 100 if idle compute was used."""
        return 100 * self.core_used_percent / self.core_percent if self.core_percent else None

    def of_memory(self) -> float | None:
        return 100 * self.memory_used_mib / self.memory_mib if self.memory_mib else None


def uses_of(nodes: Iterable[UsedNode]) -> dict[str, PodUse]:
    """Return the allocated and used amounts of each pod that has slices on the nodes, by the pod's UID."""
    found: dict[str, PodUse] = {}
    for node in nodes:
        for device in node.status.devices:
            for part in device.slices:
                use = found.setdefault(part.pod_uid, PodUse())
                if part.core_used_percent is not None:
                    use.core_percent += part.core_percent
                    use.core_used_percent += part.core_used_percent
                if part.memory_used_mib is not None:
                    use.memory_mib += part.memory_mib or device.memory_mib
                    use.memory_used_mib += part.memory_used_mib
    return found


OF_PODS: dict[str, Callable[[PodUse], float | None]] = {
    "calabash_slice_use_percent": PodUse.of_compute,
    "calabash_slice_memory_percent": PodUse.of_memory,
}
"""Selected by labels of pods of the namespace; the sum over them, so that a target of an average divides it by replicas."""

OF_QUEUES: dict[str, Callable[[KubeQueueStatus], float]] = {
    "calabash_queue_waiting_pods": lambda status: status.waiting,
    "calabash_queue_running_pods": lambda status: status.running,
    "calabash_queue_allocated_devices": lambda status: status.allocated,
    "calabash_queue_borrowed_devices": lambda status: status.borrowed,
}
"""Selected by ``queue=NAME``."""


def summed(name: str, pods: Iterable[PodUse]) -> float | None:
    """Return the sum of a metric over several pods.

    Returns None if no pod's use is reported. A sum of 0 means that the use is reported and is 0.
    """
    told = [value for use in pods if (value := OF_PODS[name](use)) is not None]
    return sum(told) if told else None


def queue_in(selector: str) -> str:
    """Return the name of the queue in a label selector of the form ``queue=NAME``.

    Raises:
        CalabashError: BAD_REQUEST for any other selector.
    """
    found = re.fullmatch(r"queue==?([a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?)", selector.strip())
    if found is None:
        raise CalabashError(
            f"{selector[:128]!r} selects no queue", reason=Reason.BAD_REQUEST, hint="matchLabels: {queue: NAME}"
        )
    return found[1]


def quantity(value: float) -> str:
    """Return a number as a Kubernetes quantity, rounded to a thousandth."""
    milli = round(value * 1000)
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"
