"""Tests of the publication of a GpuNode: it is written only when it has changed, and created by the first write."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.kubernetes.node_plugin.node_world import UID, planned, pod

from calabash.adapters.kube import KubeError, MirrorChange
from calabash.adapters.kube.objects.resources import GPU_NODE, GpuNodeStatus
from calabash.kubernetes.node_plugin.pods import NodePods
from calabash.kubernetes.node_plugin.reports.publish import NodeFacts, Publisher
from calabash.kubernetes.node_plugin.reports.usage import REST_S, UseReportLimit
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import Device, DeviceReading, DeviceUuid, Health, NodeName
from calabash.model.request import GpuRequest, ModeName, Placement, Slice
from calabash.node.membership.container import container_allocation
from calabash.node.snapshot import AllocationSnapshot, DeviceSnapshot, NodeSnapshot, SliceUse
from calabash.sharing.protocol import HeldSlice
from calabash_testing.api_server.client import MemoryKube

FACTS = NodeFacts(agent_version="1", driver_version="580.1", ready=True, reason="Serving", message="")
CARD = Device(uuid=DeviceUuid("GPU-0"), index=0, vendor="nvidia", model="T4", memory_mib=15360)
PART = Slice(device=CARD.uuid, memory_mib=1024, core_percent=30)
READING = DeviceReading(uuid=CARD.uuid, memory_used_mib=700, utilization_percent=28, temperature_c=40, power_w=60.0)
RECORD = AllocationRecord(
    id=container_allocation(UID, "main"),
    state=AllocationState.RUNNING,
    request=GpuRequest(memory_mib=1024, core_percent=30),
    placement=Placement(node=NodeName("n1"), mode=ModeName("vgpu"), slices=(PART,)),
    user="team/p1",
    command=("main",),
)


def node(*, held: bool = True, health: Health = Health.HEALTHY, use: SliceUse | None = None) -> NodeSnapshot:
    device = DeviceSnapshot(
        device=replace(CARD, health=health),
        mode=ModeName("vgpu") if held else None,
        held=(HeldSlice(slice=PART),) if held else (),
        allocations=(RECORD.id,) if held else (),
        cause="fell off the bus" if health is not Health.HEALTHY else "",
        reading=READING if use else None,
    )
    allocations = (AllocationSnapshot(record=RECORD, use=(use,) if use else ()),) if held else ()
    return NodeSnapshot(
        node=NodeName("n1"), devices=(device,), allocations=allocations, membership="kernel", slots="tmpfs"
    )


class World:
    def __init__(self) -> None:
        self.client = MemoryKube()
        self.now_s = 0.0
        self.publisher = Publisher(self.client, "n1", UseReportLimit(15.0, now_s=lambda: self.now_s))
        self.pods = NodePods(self.client, "n1")
        self.pods.changed(MirrorChange(before=None, after=pod(planned("main"))))

    def publish(self, snapshot: NodeSnapshot, facts: NodeFacts = FACTS) -> bool:
        return self.publisher.publish(snapshot, self.pods, facts)

    @property
    def status(self) -> GpuNodeStatus:
        found = self.client.get(GPU_NODE, "n1")
        assert found is not None
        return found.status

    @property
    def version(self) -> str:
        found = self.client.get(GPU_NODE, "n1")
        return found.metadata.resource_version if found else ""


def test_the_first_telling_makes_the_object_and_names_who_has_what() -> None:
    world = World()
    assert world.publish(node())
    (device,) = world.status.devices
    assert (device.uuid, device.memory_mib, device.mode, device.health) == ("GPU-0", 15360, "vgpu", "healthy")
    (part,) = device.slices
    assert (part.pod, part.pod_uid, part.container) == ("team/p1", UID, "main")
    assert (part.memory_mib, part.core_percent, part.allocation) == (1024, 30, RECORD.id)
    assert [(c.type, c.status) for c in world.status.conditions] == [("Ready", "True")]
    summary = world.status.summary
    assert summary is not None
    assert (summary.devices, summary.model, summary.memory, summary.slices) == ("1/1", "T4", "1/15 GiB", 1)


def test_what_has_not_changed_is_not_written_again() -> None:
    world = World()
    world.publish(node())
    before = world.version
    assert not world.publish(node())
    assert world.version == before
    assert world.publish(node(held=False))
    assert world.version != before
    assert world.status.devices[0].slices == ()


def used(mib: int, percent: float) -> NodeSnapshot:
    return node(use=SliceUse(memory_used_mib=mib, core_used_percent=percent))


def test_what_is_used_is_told_with_everything_else_and_then_by_steps_and_seldom() -> None:
    world = World()
    assert world.publish(used(512, 27.6))
    (device,) = world.status.devices
    assert (device.memory_used_mib, device.utilization_percent) == (700, 28)
    assert (device.slices[0].memory_used_mib, device.slices[0].core_used_percent) == (512, 28)
    observed, used_at = world.status.observed_at, world.status.used_at
    assert used_at is not None
    assert not world.publish(used(900, 5.0)), "it was told just now"
    world.now_s = 14.9
    assert not world.publish(used(900, 5.0))
    world.now_s = 15.0
    assert not world.publish(used(530, 31.0)), "less than a step"
    assert world.publish(used(900, 31.0))
    assert world.status.devices[0].slices[0].memory_used_mib == 900
    assert world.status.observed_at == observed, "no device and no slice has changed"
    world.now_s = 30.0
    assert world.publish(used(900, 12.0)), "a step of compute"
    world.now_s += REST_S
    assert not world.publish(used(900, 12.0))
    assert world.publish(used(901, 12.0)), "after a long rest the rest is told"


def test_an_agent_that_is_to_be_quiet_tells_no_use() -> None:
    world = World()
    world.publisher = Publisher(world.client, "n1", UseReportLimit(0.0, now_s=lambda: world.now_s))
    assert world.publish(used(512, 27.6))
    assert world.status.used_at is None
    assert world.status.devices[0].slices[0].memory_used_mib is None
    world.now_s = 1e6
    assert not world.publish(used(900, 80.0))


def test_a_device_that_takes_no_work_says_why() -> None:
    world = World()
    world.publish(node(health=Health.LOST))
    assert (world.status.devices[0].health, world.status.devices[0].reason) == ("unhealthy", "fell off the bus")


def test_a_node_without_a_driver_says_so_and_the_time_of_the_change_stays() -> None:
    world = World()
    world.publish(node(held=False), replace(FACTS, ready=False, reason="no_devices", message="there is no card"))
    (condition,) = world.status.conditions
    assert (condition.status, condition.reason, condition.message) == ("False", "no_devices", "there is no card")
    world.publish(node(), replace(FACTS, ready=False, reason="no_devices", message="still none"))
    assert world.status.conditions[0].last_transition_time == condition.last_transition_time


def test_a_node_that_gives_out_nothing_keeps_its_slices_and_no_planner_finds_a_device_well() -> None:
    world = World()
    world.publish(node(), replace(FACTS, ready=False, reason="foreign_plugin", message="another one is there"))
    (device,) = world.status.devices
    assert (device.health, device.reason) == ("unhealthy", "another one is there")
    assert device.slices
    world.publish(node())
    assert world.status.devices[0].health == "healthy"


def test_what_could_not_be_written_is_written_at_the_next_telling() -> None:
    world = World()
    world.client.faults.down = True
    with pytest.raises(KubeError):
        world.publish(node())
    world.client.faults.down = False
    assert world.publish(node())
    assert world.status.devices[0].slices


def test_a_node_of_claims_says_what_of_it_claims_cannot_have() -> None:
    world = World()
    world.publish(node(), replace(FACTS, claims="whole cards only"))
    claims = world.status.conditions[1]
    assert (claims.type, claims.status, claims.reason, claims.message) == (
        "Claims",
        "False",
        "Degraded",
        "whole cards only",
    )
    world.publish(node(), replace(FACTS, claims=""))
    assert (world.status.conditions[1].status, world.status.conditions[1].reason) == ("True", "Published")
    world.publish(node())
    assert [c.type for c in world.status.conditions] == ["Ready"]
