"""Pods whose memory exceeds the device: planned within the spill limit of the node, and a hint elsewhere."""

from __future__ import annotations

from tests.unit.kubernetes.planner.world import World, released, until

from calabash.adapters.kube.objects.core import EVENT
from calabash.kubernetes.objects.names import PLAN
from calabash.kubernetes.objects.plan import read_plan
from calabash.model.request import GpuRequest

GIB = 1024
SPILLING = GpuRequest(memory_mib=60 * GIB, spill_mib=30 * GIB, core_percent=40)


def test_pods_are_planned_beyond_device_memory_up_to_the_spill_limit_of_the_node(world: World) -> None:
    world.node("stingy")
    world.node("generous", spillMib=40 * GIB)
    world.start()
    world.pod("first", SPILLING)
    plan = read_plan(until(lambda: released(world, "first"), "released").metadata.annotations[PLAN])
    assert plan.node == "generous"
    (part,) = plan.containers[0].slices
    assert (part.memory_mib, part.spill_mib, part.core_percent) == (60 * GIB, 30 * GIB, 40)
    world.pod("second", SPILLING)  # the other card has room, but the node's memory does not
    told = until(
        lambda: [e.message for e in world.client.list(EVENT, "team").items if e.involved_object.name == "second"],
        "told",
    )
    assert "host memory" in told[0]
    assert PLAN not in world.get("second").metadata.annotations
    world.pod("small", GpuRequest(memory_mib=20 * GIB, spill_mib=10 * GIB, core_percent=10))
    until(lambda: released(world, "small"), "released")


def test_pod_waits_with_a_hint_if_no_node_allows_spilling(world: World) -> None:
    world.node("stingy")
    world.start()
    world.pod("p", SPILLING)
    told = until(lambda: [e.message for e in world.client.list(EVENT, "team").items], "told")
    assert "spilling memory to the host is not enabled" in told[0]
