"""A node's state is written when it has changed, and only then; its first writing makes the object."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.kubernetes.node.node_world import UID, planned, pod

from calabash.agent.membership_container import container_allocation
from calabash.agent.snapshot import AllocationSnapshot, DeviceSnapshot, NodeSnapshot
from calabash.kubernetes.node.pods import NodePods
from calabash.kubernetes.node.publish import NodeFacts, Publisher
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import Device, DeviceUuid, Health, NodeName
from calabash.model.request import GpuRequest, ModeName, Placement, Slice
from calabash.seams.kube import KubeError, MirrorChange
from calabash.seams.kube.memory import MemoryKube
from calabash.seams.kube.resources import GPU_NODE, GpuNodeStatus
from calabash.sharing.protocol import HeldSlice

FACTS = NodeFacts(agent_version="1", driver_version="580.1", ready=True, reason="Serving", message="")
CARD = Device(uuid=DeviceUuid("GPU-0"), index=0, vendor="nvidia", model="T4", memory_mib=15360)
PART = Slice(device=CARD.uuid, memory_mib=1024, core_percent=30)
RECORD = AllocationRecord(
    id=container_allocation(UID, "main"),
    state=AllocationState.RUNNING,
    request=GpuRequest(memory_mib=1024, core_percent=30),
    placement=Placement(node=NodeName("n1"), mode=ModeName("vgpu"), slices=(PART,)),
    user="team/p1",
    command=("main",),
)


def node(*, held: bool = True, health: Health = Health.HEALTHY) -> NodeSnapshot:
    device = DeviceSnapshot(
        device=replace(CARD, health=health),
        mode=ModeName("vgpu") if held else None,
        held=(HeldSlice(slice=PART),) if held else (),
        allocations=(RECORD.id,) if held else (),
        cause="fell off the bus" if health is not Health.HEALTHY else "",
    )
    allocations = (AllocationSnapshot(record=RECORD, use=()),) if held else ()
    return NodeSnapshot(
        node=NodeName("n1"), devices=(device,), allocations=allocations, membership="kernel", slots="tmpfs"
    )


class World:
    def __init__(self) -> None:
        self.client = MemoryKube()
        self.publisher = Publisher(self.client, "n1")
        self.pods = NodePods(lambda namespace, name: None)
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


def test_what_could_not_be_written_is_written_at_the_next_telling() -> None:
    world = World()
    world.client.faults.down = True
    with pytest.raises(KubeError):
        world.publish(node())
    world.client.faults.down = False
    assert world.publish(node())
    assert world.status.devices[0].slices
