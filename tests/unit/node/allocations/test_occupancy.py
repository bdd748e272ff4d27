"""A card is free when its driver says so: a listed process of an allocation keeps it."""

from __future__ import annotations

from typing import Any, cast

from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import DeviceProcess, DeviceUuid, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement, Slice
from calabash.node.allocations.occupancy import ANSWER_WITHIN_NS, Occupancy
from calabash_testing.clock import VirtualClock

CARD = DeviceUuid("GPU-1")


class Node:
    """One card, the processes listed on it, and their allocations."""

    def __init__(self) -> None:
        self.listed: list[int] = []
        self.members: dict[int, AllocationId] = {}
        self.answers = True
        self.clock = VirtualClock()
        self.questions = 0
        self.occupancy = Occupancy(cast("Any", self), cast("Any", self), self.clock, asked=self._asked)

    def _asked(self) -> None:
        self.questions += 1

    def driver_of(self, uuid: DeviceUuid) -> Node:
        return self

    def processes(self, uuid: DeviceUuid) -> list[DeviceProcess]:
        if not self.answers:
            raise CalabashError("it does not answer", reason=Reason.UNHEALTHY)
        return [DeviceProcess(pid=pid, used_bytes=1 << 20) for pid in self.listed]

    def allocation_of(self, pid: int) -> AllocationId | None:
        return self.members.get(pid)


def _record() -> AllocationRecord:
    part = Slice(device=CARD, memory_mib=1, core_percent=1)
    return AllocationRecord(
        id=AllocationId("a1"),
        state=AllocationState.RUNNING,
        request=GpuRequest(),
        placement=Placement(node=NodeName("n"), mode=ModeName("vgpu"), slices=(part,)),
    )


def test_allocation_is_clear_only_after_the_driver_lists_none_of_its_processes() -> None:
    node = Node()
    node.listed, node.members = [7, 8], {7: AllocationId("a1"), 8: AllocationId("b2")}
    assert not node.occupancy.is_clear(_record())
    assert node.questions == 1
    assert not node.occupancy.poll()
    node.clock.advance(100)
    assert not node.occupancy.is_clear(_record()), "a process that is listed keeps it, however long that takes"
    node.listed = [8]
    assert node.occupancy.poll()
    assert node.occupancy.is_clear(_record())


def test_answer_from_before_a_reuse_does_not_count() -> None:
    node = Node()
    node.occupancy.is_clear(_record())
    node.occupancy.poll()
    node.occupancy.discard(AllocationId("a1"))
    assert not node.occupancy.is_clear(_record())
    assert node.questions == 2


def test_card_that_does_not_answer_or_hangs_delays_no_release() -> None:
    node = Node()
    node.answers = False
    node.occupancy.is_clear(_record())
    node.occupancy.poll()
    assert node.occupancy.is_clear(_record())
    hanging = Node()
    assert not hanging.occupancy.is_clear(_record())
    hanging.clock.advance(ANSWER_WITHIN_NS / 1e9 + 0.1)
    assert hanging.occupancy.is_clear(_record())
