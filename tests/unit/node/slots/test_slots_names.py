"""Slots and other objects of an allocation keep their random names over restarts of the agent."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from calabash.adapters.store import open_store
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import Device, DeviceReading, DeviceUuid, NodeName
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement, Slice
from calabash.node import wiring
from calabash.node.agent import NodeAgent
from calabash.node.membership.lease import LeaseMembership
from calabash.node.modes.protocol import NodeTools, ViewOnly
from calabash.node.slots.names import LEASE_FILE, SlotNames, is_slot_name
from calabash_testing.clock import VirtualClock

CARDS = tuple(
    Device(uuid=DeviceUuid(f"GPU-{i}"), index=i, vendor="nvidia", model="A100", memory_mib=40_000) for i in range(2)
)
EXCLUSIVE = ModeName("exclusive")


class Driver:
    vendor = "nvidia"

    def devices(self) -> tuple[Device, ...]:
        return CARDS

    def read(self, uuid: DeviceUuid) -> DeviceReading:
        return DeviceReading(uuid=uuid, memory_used_mib=0, utilization_percent=0, temperature_c=30, power_w=50.0)


class Exclusive(ViewOnly):
    name = EXCLUSIVE


def modes(tools: NodeTools) -> Mapping[ModeName, ViewOnly]:
    return {EXCLUSIVE: Exclusive(tools)}


def record(name: str, card: Device) -> AllocationRecord:
    part = Slice(device=card.uuid, memory_mib=card.memory_mib, core_percent=100)
    return AllocationRecord(
        id=AllocationId(name),
        state=AllocationState.GRANTED,
        request=GpuRequest(mode=EXCLUSIVE),
        placement=Placement(node=NodeName("n"), mode=EXCLUSIVE, slices=(part,)),
    )


@contextmanager
def running(home: Path) -> Iterator[tuple[NodeAgent, SlotNames]]:
    """An agent on two cards, and the names of its slots."""
    names, store = SlotNames(), open_store(f"sqlite:///{home}/journal.db")

    def lease(allocation: AllocationId) -> Path:
        return home / "alloc" / names.name_of(allocation) / LEASE_FILE

    agent = NodeAgent(
        home=home,
        store=store,
        clock=VirtualClock(),
        drivers=[cast("Any", Driver())],
        library=home / "libcalabash.so",
        node="n",
        membership=LeaseMembership(lease),
        names=names,
    )
    agent.start()
    try:
        yield agent, names
    finally:
        agent.stop()
        store.close()


def test_slots_have_the_same_names_after_a_restart_of_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wiring, "open_modes", modes)
    ids = [AllocationId("first"), AllocationId("second")]
    with running(tmp_path) as (agent, names):
        given = {name: agent.grant(record(name, card)) for name, card in zip(ids, CARDS, strict=True)}
        slots = {name: Path(grant.record.slot) for name, grant in given.items()}
        assert {name: names.name_of(name) for name in ids} == {name: path.name for name, path in slots.items()}
        inodes = {name: path.stat().st_ino for name, path in slots.items()}
    assert len(set(slots.values())) == len(ids)
    for name, path in slots.items():
        assert is_slot_name(path.name)
        assert name not in path.name, "other users of the node read the names of slots"
    for _ in range(2):
        with running(tmp_path) as (agent, names):
            assert {r.id: Path(r.slot) for r in agent.records()} == slots
            assert {name: names.name_of(name) for name in ids} == {name: path.name for name, path in slots.items()}
            assert {names.allocation_of(path.name) for path in slots.values()} == set(ids)
            assert sorted(os.listdir(tmp_path / "alloc")) == sorted(path.name for path in slots.values())
            assert {name: path.stat().st_ino for name, path in slots.items()} == inodes
            for name, card in zip(ids, CARDS, strict=True):
                again = agent.grant(record(name, card))
                assert again.record.slot == str(slots[name])
                assert again.edits == given[name].edits, "a container that starts again is given the same slot"
