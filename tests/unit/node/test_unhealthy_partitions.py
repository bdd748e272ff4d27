"""Slices on unhealthy partitions of healthy cards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from tests.unit.node.devices.test_inventory import ONE, Node

from calabash.node import snapshot_reader
from calabash.node.health.conditions import HealthEvent
from calabash.node.wiring import NodeParts


def _held(node: Node, **slots: tuple[str, ...]) -> NodeParts:
    """Return components with allocations whose slots name these devices."""
    limits = [SimpleNamespace(allocation=name, uuids=uuids) for name, uuids in slots.items()]
    opened = [SimpleNamespace(limits=one) for one in limits]
    return cast(
        "NodeParts", SimpleNamespace(inventory=node.inventory, usage_tracker=SimpleNamespace(open_slots=lambda: opened))
    )


def test_slices_on_an_unhealthy_partition_are_reported_until_it_is_healthy() -> None:
    node = Node()
    parts = _held(node, a=("MIG-1",), b=("MIG-2", "MIG-1"), c=("MIG-3",), d=(ONE,))
    assert snapshot_reader.unhealthy_partitions(parts) == {}
    node.xid(95, part="MIG-1")
    assert snapshot_reader.unhealthy_partitions(parts) == {"a": {0}, "b": {1}}
    for event in (HealthEvent.IDLE, HealthEvent.RESET_DONE, HealthEvent.TEST_PASSED):
        node.inventory.health.part_happened(ONE, "MIG-1", event, "made anew")
    assert snapshot_reader.unhealthy_partitions(parts) == {}
