"""A node of four devices in two pairs, with an agent that records its calls."""

from __future__ import annotations

import itertools
from dataclasses import replace

from tests.unit.kubernetes.node_plugin.node_world import NODE, Agent

from calabash.kubernetes.node_plugin.containers.device_ids import card_ids
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import Device, DeviceUuid, Health, NodeName
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement, Slice
from calabash.node.processes.unmanaged import UnmanagedProcess
from calabash.node.snapshot import DeviceSnapshot
from calabash.sharing.protocol import HeldSlice

TOKENS = tuple(itertools.islice(card_ids(), 8))
PEERS = {"GPU-0": "GPU-1", "GPU-1": "GPU-0", "GPU-2": "GPU-3", "GPU-3": "GPU-2"}
CARDS = tuple(
    Device(
        uuid=DeviceUuid(f"GPU-{i}"),
        index=i,
        vendor="nvidia",
        model="T4",
        memory_mib=15360,
        nvlink_peers=(DeviceUuid(PEERS[f"GPU-{i}"]),),
    )
    for i in range(4)
)


class Cards(Agent):
    """Agent that also has devices."""

    node = NodeName(NODE)

    def __init__(self) -> None:
        super().__init__()
        self.health: dict[str, Health] = {}
        self.unmanaged: dict[str, UnmanagedProcess] = {}
        self.orphans: dict[str, AllocationId] = {}

    def devices(self) -> tuple[DeviceSnapshot, ...]:
        return tuple(self._state(card) for card in CARDS)

    def _state(self, card: Device) -> DeviceSnapshot:
        on = [(r, s) for r in self.held.values() for s in r.placement.slices if s.device == card.uuid]
        return DeviceSnapshot(
            device=replace(card, health=self.health.get(card.uuid, Health.HEALTHY)),
            mode=on[0][0].placement.mode if on else None,
            held=tuple(HeldSlice(slice=s) for _, s in on),
            allocations=tuple(r.id for r, _ in on),
            unmanaged=(self.unmanaged[card.uuid],) if card.uuid in self.unmanaged else (),
            orphans=(self.orphans[card.uuid],) if card.uuid in self.orphans else (),
        )

    def hold(self, name: str, device: str, mode: str = "vgpu") -> None:
        part = Slice(device=DeviceUuid(device), memory_mib=1024, core_percent=30)
        record = AllocationRecord(
            id=AllocationId(name),
            state=AllocationState.RUNNING,
            request=GpuRequest(memory_mib=1024),
            placement=Placement(node=NodeName(NODE), mode=ModeName(mode), slices=(part,)),
        )
        self.held[record.id] = record
