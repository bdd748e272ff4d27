"""Tests of device maintenance: drains are applied, and each order is carried out once, also if the agent restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from calabash.adapters.kube import MirrorChange
from calabash.adapters.kube.objects.meta import ObjectMeta
from calabash.adapters.kube.objects.resources import GpuNode, GpuNodeDeviceSpec, GpuNodeOrder, GpuNodeSpec
from calabash.kubernetes.node_plugin.devices.maintenance import DeviceMaintenance
from calabash.model.device import Device, DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.node.devices.probe import ProbeResult
from calabash.node.health.conditions import HealthFacts
from calabash.node.health.store import CardEntry

CARDS = tuple(
    Device(uuid=DeviceUuid(f"GPU-{i}"), index=i, vendor="nvidia", model="T4", memory_mib=15360) for i in range(2)
)


class Cards:
    """Two devices, and the record of operations on them."""

    def __init__(self) -> None:
        self.entries = {card.uuid: CardEntry() for card in CARDS}
        self.done: list[tuple[str, str]] = []
        self.fails = ""

    def entry(self, device: Device) -> CardEntry:
        return self.entries[device.uuid]

    def drain(self, device: Device, *, why: str, evict_after_s: float | None) -> None:
        assert evict_after_s is None, "pods leave by evictions, not by their node's agent"
        self.entries[device.uuid] = CardEntry(condition=HealthFacts(drained=True), drained_why=why)
        self.done.append(("drain", device.uuid))

    def undrain(self, device: Device) -> None:
        self.entries[device.uuid] = CardEntry()
        self.done.append(("undrain", device.uuid))

    def test(self, device: Device) -> ProbeResult:
        self.done.append(("test", device.uuid))
        if self.fails:
            raise CalabashError(self.fails, reason=Reason.CONFLICT)
        return ProbeResult(passed=device.index == 0, why="a copy came back otherwise", figures={"copy": 12.0})

    def reset(self, device: Device) -> None:
        self.done.append(("reset", device.uuid))


class World:
    def __init__(self, home: Path) -> None:
        self.cards = Cards()
        self.told = 0
        self.file = home / "orders.json"
        self.maintenance = self.started()

    def started(self) -> DeviceMaintenance:
        """Start a new agent."""
        self.maintenance = DeviceMaintenance(self.cards, lambda: CARDS, self.file, told=self._count_report)
        return self.maintenance

    def _count_report(self) -> None:
        self.told += 1

    def set_spec(self, **cards: GpuNodeDeviceSpec) -> None:
        """Set the spec of the GpuNode; ``GPU_0`` is the first device."""
        spec = GpuNodeSpec(devices={name.replace("_", "-"): wanted for name, wanted in cards.items()})
        node = GpuNode(metadata=ObjectMeta(name="n1"), spec=spec)
        self.maintenance.changed(MirrorChange(before=None, after=node))
        self.maintenance.follow()

    def outcome(self, card: int = 0) -> tuple[str, str, str]:
        found = self.maintenance.outcomes()[CARDS[card].uuid]
        return found.id, found.state, found.message


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def ordered(what: str, number: str = "1", **more: object) -> GpuNodeDeviceSpec:
    return GpuNodeDeviceSpec(order=GpuNodeOrder(id=number, what=what), **more)  # type: ignore[arg-type]


def test_before_the_spec_is_known_nothing_is_done(world: World) -> None:
    world.cards.drain(CARDS[0], why="before", evict_after_s=None)
    world.maintenance.follow()
    world.maintenance.changed(MirrorChange(before=GpuNode(metadata=ObjectMeta(name="n1")), after=None))
    world.maintenance.follow()
    assert world.cards.done == [("drain", "GPU-0")]


def test_a_card_is_drained_as_long_as_the_spec_says_so(world: World) -> None:
    for _ in range(3):
        world.set_spec(GPU_0=GpuNodeDeviceSpec(drained=True, reason="a new fan"))
    assert world.cards.done == [("drain", "GPU-0")]
    world.set_spec(GPU_0=GpuNodeDeviceSpec(drained=True, reason="a new card"))
    assert world.cards.entries[CARDS[0].uuid].drained_why == "a new card"
    world.set_spec()
    assert world.cards.done[1:] == [("drain", "GPU-0"), ("undrain", "GPU-0")]


def test_an_order_is_carried_out_once_and_its_outcome_told(world: World) -> None:
    for _ in range(3):
        world.set_spec(GPU_0=ordered("test"), GPU_1=ordered("test"))
    assert world.cards.done == [("test", "GPU-0"), ("test", "GPU-1")]
    assert world.outcome(0) == ("1", "done", "passed: copy 12 us")
    assert world.outcome(1) == ("1", "failed", "the test failed: a copy came back otherwise")
    assert world.told == 4, "that it was begun, and how it ended"
    world.set_spec(GPU_0=ordered("reset", "2"), GPU_1=ordered("undrain", "2"))
    assert world.cards.done[2:] == [("reset", "GPU-0"), ("undrain", "GPU-1")]
    assert world.outcome(0)[:2] == ("2", "done")


def test_what_is_refused_and_what_nobody_knows_is_told_and_not_tried_again(world: World) -> None:
    world.cards.fails = "device 0 is to be tested, and is used by a1"
    for _ in range(2):
        world.set_spec(GPU_0=ordered("test"), GPU_1=ordered("polish"))
    assert world.cards.done == [("test", "GPU-0")]
    assert world.outcome(0) == ("1", "failed", "device 0 is to be tested, and is used by a1")
    assert world.outcome(1)[1:] == ("failed", "order 'polish' is not known")


def test_an_agent_that_starts_again_repeats_no_order(world: World) -> None:
    world.set_spec(GPU_0=ordered("reset"))
    world.started()
    world.set_spec(GPU_0=ordered("reset"))
    assert world.cards.done == [("reset", "GPU-0")]
    assert world.outcome()[1] == "done"


def test_an_order_in_whose_middle_the_agent_died_is_told_as_failed(world: World) -> None:
    class DiedError(Exception):
        """The agent was killed (simulated)."""

    def dies(device: Device) -> None:
        raise DiedError

    world.cards.reset = dies  # type: ignore[method-assign]
    with pytest.raises(DiedError):
        world.set_spec(GPU_0=ordered("reset"))
    world.started()
    world.set_spec(GPU_0=ordered("reset"))
    assert world.outcome()[1] == "failed"
    assert "the agent restarted" in world.outcome()[2]


def test_what_cannot_be_written_down_is_not_done(world: World) -> None:
    world.file.mkdir()
    with pytest.raises(CalabashError) as refused:
        world.set_spec(GPU_0=ordered("reset"))
    assert refused.value.reason is Reason.DISK_FULL
    assert world.cards.done == []


def test_the_thread_follows_what_the_mirror_sees_and_ends(world: World) -> None:
    world.maintenance.start()
    spec = GpuNodeSpec(devices={"GPU-1": GpuNodeDeviceSpec(drained=True)})
    world.maintenance.changed(MirrorChange(before=None, after=GpuNode(metadata=ObjectMeta(name="n1"), spec=spec)))
    world.maintenance.stop()
    world.maintenance.follow()  # in case the thread ended before it saw the order
    assert world.cards.done == [("drain", "GPU-1")]
