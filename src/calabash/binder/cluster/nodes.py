"""A node of a cluster with the properties that requests can select, and its conversion to the scheduler's node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from calabash.binder.cluster.device_kinds import NodeDevice
from calabash.binder.shapes import UNMANAGED, host_memory_of, islands_of
from calabash.model.device import Health, NodeName
from calabash.sched import GpuSpec, NodeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """A node with the properties that requests can select.

    Args:
        schedulable: False if the node is cordoned.
        domains: domains of the network to which the node belongs; see ``sched.NodeSpec``.
    """

    name: NodeName
    devices: tuple[NodeDevice, ...]
    labels: Mapping[str, str]
    taints: tuple[str, ...] = ()
    schedulable: bool = True
    domains: tuple[str, ...] = ()


def same_devices(one: ClusterNode, other: ClusterNode) -> bool:
    """Return True if both states of a node have the same devices, whatever their health and use."""
    return [_fixed(d) for d in one.devices] == [_fixed(d) for d in other.devices]


def spec_of(node: ClusterNode) -> NodeSpec:
    """Return the node as the scheduler's ``NodeSpec``. Host CPUs are unlimited there, since Kubernetes counts them."""
    devices = [found.device for found in node.devices]
    specs = [
        GpuSpec(
            model=found.kind,
            card=found.device.model,
            memory_mib=found.device.memory_mib,
            island=island,
            numa=found.device.numa_node,
            healthy=found.device.health is Health.HEALTHY,
            mode=found.device.pinned,
            geometry=found.device.mig,
        )
        for found, island in zip(node.devices, islands_of(devices), strict=True)
    ]
    return NodeSpec(
        name=node.name,
        cpu_milli=UNMANAGED,
        memory_mib=host_memory_of(devices),
        gpus=tuple(specs),
        labels=node.labels,
        taints=node.taints,
        domains=node.domains,
    )


def _fixed(found: NodeDevice) -> tuple[object, ...]:
    """Return the properties of a device that never change."""
    device = found.device
    return (device.uuid, device.index, found.kind, device.numa_node, device.nvlink_peers)
