"""Health of device IDs, which tells the kubelet the health of running pods' devices and how many devices are available.

A device ID stands for no device until its container starts. From then on it stands for one of the container's devices:
the container's device IDs, sorted, correspond to the slices of its plan in their order. A device ID in use therefore
has the health of that device, or of the partition if the slice is one. The kubelet writes it into the pod's
``allocatedResourcesStatus``.

Unused device IDs stand for capacity. As many of them are healthy as slices can still be made on the healthy devices.
Schedulers compute the available number as the healthy device IDs minus those of all pods, including pods whose device
IDs are unhealthy. For each unhealthy device ID in use, one more unused device ID is therefore reported as healthy.

A device that has missed one health check is not out of service yet: the planner places nothing new on it, but its
device IDs stay healthy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from calabash.adapters.kubelet.protocol import CheckpointEntry, PluginDevice
from calabash.kubernetes.node_plugin.containers.device_ids import token_ids
from calabash.model.allocation import AllocationRecord
from calabash.model.device import OUT_OF_SERVICE, Device, DeviceUuid
from calabash.model.request import AllocationId
from calabash.node.membership.container import container_allocation
from calabash.sharing.vgpu import SLICES_MAX

Parts = Mapping[AllocationId, Collection[int]]
"""Indices of the unhealthy slices of allocations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTokens:
    """Device IDs that one container holds.

    Args:
        tokens: the device IDs, in any order.
        devices: devices of the container's slices: ``devices[i]`` belongs to the i-th of the sorted device IDs. Empty
            while the container has no allocation.
        unhealthy: indices in ``devices`` of the slices that are on an unhealthy partition.
    """

    tokens: tuple[str, ...]
    devices: tuple[DeviceUuid, ...] = ()
    unhealthy: frozenset[int] = frozenset()


def held_tokens(
    entries: Iterable[CheckpointEntry],
    record: Callable[[AllocationId], AllocationRecord | None],
    parts: Parts | None = None,
) -> list[HeldTokens]:
    """Return the device IDs in use, from the kubelet's checkpoint and the allocation records.

    Args:
        entries: entries of the kubelet's checkpoint.
        record: returns the record of an allocation; None if it is not granted.
        parts: indices of the unhealthy slices of allocations; None for none.
    """
    found = []
    for entry in entries:
        name = container_allocation(entry.pod_uid, entry.container)
        granted = record(name)
        devices = tuple(s.device for s in granted.placement.slices) if granted is not None else ()
        unhealthy = frozenset((parts or {}).get(name, ()))
        found.append(HeldTokens(tokens=entry.device_ids, devices=devices, unhealthy=unhealthy))
    return found


def any_out_of_service(devices: Iterable[Device]) -> bool:
    """Return True if a device is out of service, so that some device IDs are unhealthy."""
    return any(device.health in OUT_OF_SERVICE for device in devices)


def token_health(
    devices: Sequence[Device], held: Iterable[HeldTokens], *, gives: bool = True, apart: Collection[DeviceUuid] = ()
) -> list[PluginDevice]:
    """Return all device IDs of the node with their health.

    Args:
        devices: all devices of the node.
        held: device IDs in use. May be left empty if no device is out of service and ``gives`` is True, because all
            device IDs are then healthy.
        gives: True if the node grants new allocations.
        apart: devices that are not offered by device IDs, such as those that are allocated to claims.
    """
    unhealthy = {device.uuid for device in devices if device.health in OUT_OF_SERVICE}
    taken: set[str] = set()
    sick: set[str] = set()
    for one in held:
        tokens = sorted(one.tokens)
        taken.update(tokens)
        having = enumerate(zip(tokens, one.devices, strict=False))
        sick.update(token for place, (token, device) in having if device in unhealthy or place in one.unhealthy)
    borne = (len(devices) - len(unhealthy.union(apart))) * SLICES_MAX
    room = borne - len(taken - sick) + len(sick) if gives and borne else 0
    answer = []
    for name in token_ids(len(devices)):
        healthy = name not in sick if name in taken else room > 0
        room -= healthy and name not in taken
        answer.append(PluginDevice(id=name, healthy=healthy))
    return answer
