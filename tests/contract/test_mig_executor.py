"""Node side of MIG against the driver's layout of the cards: instances created, reused, replaced, adopted, restored."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.native.simnode import simctl, until

from calabash.adapters.gpu import sim, vendors
from calabash.adapters.gpu.partitions import CardLayout, Partitioning, partitioning_of
from calabash.adapters.gpu.protocol import DriverOptions, GpuDriver
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import Device, DeviceUuid, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Text
from calabash.model.mig import split_profile
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement, Slice
from calabash.node.devices.inventory import Inventory
from calabash.node.health.conditions import HealthEvent
from calabash.node.modes.mig.executor import MigExecutor
from calabash.node.modes.protocol import NoAllocations, NodeTools
from calabash.node.processes.reaper import OpenSlot
from calabash.sharing.mig import MODE
from calabash.sharing.protocol import HeldSlice, Misfit

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="cutting cards needs root, as on a real one")

HOLD = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
print("ready", flush=True)
sys.stdin.read()
"""


class Killed(BaseException):
    """Death of the pool at this moment."""


class Mortal:
    """Partitioning interface of the driver at which a pool may be killed, at any call that changes something."""

    def __init__(self, real: Partitioning) -> None:
        self._real = real
        self.calls_left = -1

    def layout(self, uuid: DeviceUuid) -> CardLayout:
        return self._real.layout(uuid)

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            if self.calls_left == 0:
                raise Killed
            self.calls_left -= 1
            return getattr(self._real, name)(*arguments)

        return call


class _Allocations(NoAllocations):
    """Allocations of a world, whose ends it records."""

    def __init__(self, world: World) -> None:
        self._world = world

    def open_slots(self) -> list[OpenSlot]:
        return [cast("OpenSlot", SimpleNamespace(limits=limits)) for limits in self._world.slots.values()]

    def end(self, allocation: AllocationId, reason: str, explanation: Text) -> None:
        self._world.ended.append((allocation, reason))


@dataclass
class World:
    """Cards, a pool's record of them on disk, and the slots of allocations."""

    home: Path
    node: sim.NodeFile
    driver: GpuDriver
    cut: Partitioning
    mortal: Mortal
    ended: list[tuple[str, str]] = field(default_factory=list)
    held: dict[str, AllocationRecord] = field(default_factory=dict)
    slots: dict[str, Any] = field(default_factory=dict)
    root: Path | None = None
    executor: MigExecutor = field(init=False)
    inventory: Inventory = field(init=False)

    def start(self) -> None:
        """Start a pool; an earlier one may have died."""
        mortal = SimpleNamespace(
            **{n: getattr(self.driver, n) for n in ("devices", "read", "processes", "vendor")}, partitioning=self.mortal
        )
        self.inventory = Inventory([cast("GpuDriver", mortal)])
        tools = NodeTools(
            home=self.home,
            inventory=self.inventory,
            library=self.home / "none",
            environment={},
            device_root=self.root,
            allocations=_Allocations(self),
        )
        self.executor = MigExecutor(tools)
        self.executor.start()
        self.executor.recover(list(self.held.values()))

    @property
    def cards(self) -> tuple[Device, ...]:
        return self.inventory.devices()

    def on(self, device: Device) -> list[HeldSlice]:
        parts = (part for record in self.held.values() for part in record.placement.slices)
        return [HeldSlice(slice=part) for part in parts if part.device == device.uuid]

    def grant(self, name: str, profile: str, start: int, card: int = 0, *, part: int = -1) -> DeviceUuid:
        """Grant an instance as the agent does: journal, provide, write the slot."""
        device = self.cards[card]
        slice_ = Slice(device=device.uuid, memory_mib=1, core_percent=1, profile=profile, start=start, part=part)
        record = AllocationRecord(
            id=AllocationId(name),
            state=AllocationState.GRANTED,
            request=GpuRequest(mig=profile),
            placement=Placement(node=NodeName("n"), mode=ModeName("mig"), slices=(slice_,)),
        )
        self.executor.prepare(record)
        try:
            (slot,) = self.executor.provide(record)
        except CalabashError:
            self.executor.leave(record)
            raise
        self.held[name] = record
        limits = SimpleNamespace(allocation=record.id, uuids=(slot.uuid,))
        limits.set_uuid = lambda index, uuid: setattr(limits, "uuids", (uuid,))
        self.slots[name] = limits
        return slot.uuid

    def leave(self, name: str) -> None:
        del self.slots[name]
        self.executor.leave(self.held.pop(name))

    def verify(self) -> list[str]:
        return self.executor.verify(list(self.held.values()))

    def places(self, card: int = 0) -> list[tuple[str, int]]:
        return [(i.profile, i.start) for i in self.cut.layout(self.cards[card].uuid).instances]


@contextmanager
def world_at(home: Path, gpus: str = "2xA100-80GB,T4", *, timeout_s: float = 60.0) -> Iterator[World]:
    home.mkdir(parents=True, exist_ok=True)
    node = sim.create_node(home, "lab", gpus, seed=1)
    driver = vendors.open_driver("nvidia", DriverOptions(sim_state=node.state, call_timeout_s=timeout_s))
    cut = partitioning_of(driver)
    assert cut is not None
    world = World(home=home, node=node, driver=driver, cut=cut, mortal=Mortal(cut))
    try:
        world.start()
        yield world
    finally:
        driver.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with world_at(tmp_path) as made:
        yield made


@pytest.fixture
def programs() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def hold(world: World, uuid: str, programs: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    environment = os.environ | sim.environment(world.node) | {"CUDA_VISIBLE_DEVICES": uuid}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    programs.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def refused(world: World, *arguments: Any, part: int = -1) -> CalabashError:
    with pytest.raises(CalabashError) as caught:
        world.grant(*arguments, part=part)
    return caught.value


def test_an_instance_is_made_where_the_slice_says_and_its_slot_names_the_mig_device(world: World) -> None:
    uuid = world.grant("a", "3g.40gb", 4)
    (instance,) = world.cut.layout(world.cards[0].uuid).instances
    assert (instance.profile, instance.start, [p.uuid for p in instance.parts]) == ("3g.40gb", 4, [uuid])
    assert uuid.startswith("MIG-")
    shown = world.cards[0]
    assert shown.mig_enabled
    assert [(i.profile, i.start, i.uuid, i.fixed, i.foreign) for i in shown.mig_instances] == [
        ("3g.40gb", 4, uuid, False, False)
    ]
    environment = dict(world.executor.edits(world.held["a"]).environment)
    assert environment == {"CUDA_VISIBLE_DEVICES": uuid, "NVIDIA_VISIBLE_DEVICES": uuid}
    assert world.inventory.driver_of(uuid) is world.inventory.driver_of(shown.uuid)


def test_repeated_grant_returns_the_same_device(world: World) -> None:
    uuid = world.grant("a", "1g.10gb", 3)
    assert world.executor.provide(world.held["a"])[0].uuid == uuid
    assert world.places() == [("1g.10gb", 3)]


def test_instance_of_an_ended_tenant_is_reused_by_the_next(world: World) -> None:
    uuid = world.grant("a", "2g.20gb", 2)
    world.leave("a")
    assert world.places() == [("2g.20gb", 2)]
    assert world.grant("b", "2g.20gb", 2) == uuid


def test_fewest_idle_instances_are_destroyed_for_another_profile(world: World) -> None:
    for number in range(4):
        world.grant(str(number), "1g.10gb", number)
    for number in (0, 1, 3):
        world.leave(str(number))
    kept = world.slots["2"].uuids
    world.grant("b", "2g.20gb", 0)
    assert world.places() == [("2g.20gb", 0), ("1g.10gb", 2), ("1g.10gb", 3)]
    assert refused(world, "c", "4g.40gb", 0).reason is Reason.NO_CAPACITY
    assert world.slots["2"].uuids == kept
    assert world.verify() == []


def test_foreign_idle_instances_are_given_out_and_never_destroyed(world: World) -> None:
    card = world.cards[0].uuid
    world.cut.enable(card, True)
    found = world.cut.create(card, "3g.40gb", 0)
    part = world.cut.create_part(card, found.id, 3)
    world.start()
    assert [(i.place, i.fixed) for i in world.cards[0].mig_instances] == [(("3g.40gb", 0), True)]
    assert refused(world, "a", "1g.10gb", 0).reason is Reason.NO_CAPACITY
    assert world.grant("b", "3g.40gb", 0) == part.uuid
    world.leave("b")
    other = replace_mode(world, "exclusive")
    with pytest.raises(CalabashError) as caught:
        world.executor.vacate(other)
    assert caught.value.reason is Reason.MODE_CONFLICT
    assert caught.value.message.endswith("its 3g.40gb at 0 was not created by this pool")
    which = f"-i {card} -gi {found.id}"
    assert f"nvidia-smi mig -dci {which} && nvidia-smi mig -dgi {which}" in caught.value.hint
    assert world.places() == [("3g.40gb", 0)]


def replace_mode(world: World, mode: str) -> AllocationRecord:
    part = Slice(device=world.cards[0].uuid, memory_mib=1, core_percent=100)
    return AllocationRecord(
        id=AllocationId("other"),
        state=AllocationState.GRANTED,
        request=GpuRequest(),
        placement=Placement(node=NodeName("n"), mode=ModeName(mode), slices=(part,)),
    )


def test_mig_is_turned_off_for_another_mode_only_on_an_idle_card(world: World) -> None:
    world.grant("a", "1g.10gb", 0)
    with pytest.raises(CalabashError) as caught:
        world.executor.vacate(replace_mode(world, "vgpu"))
    assert caught.value.reason is Reason.MODE_CONFLICT
    assert caught.value.message.endswith("its 1g.10gb at 0 is in use")
    assert "wait until its programs have ended" in caught.value.hint
    world.leave("a")
    world.executor.vacate(replace_mode(world, "vgpu"))
    assert (world.cards[0].mig_enabled, world.cards[0].mig_instances) == (False, ())
    assert not world.cut.layout(world.cards[0].uuid).enabled


def test_mig_is_not_turned_off_while_the_device_has_a_layout(world: World) -> None:
    world.executor.arrange(world.cards[0].uuid, [("3g.40gb", 0)])
    with pytest.raises(CalabashError) as caught:
        world.executor.vacate(replace_mode(world, "vgpu"))
    assert caught.value.reason is Reason.MODE_CONFLICT
    assert caught.value.message.endswith("its 3g.40gb at 0 belongs to the layout of the device")
    assert caught.value.hint == f"to remove the layout: calabash device mig apply {world.cards[0].index}:none"
    world.executor.arrange(world.cards[0].uuid, [])
    world.executor.vacate(replace_mode(world, "vgpu"))


def test_instance_with_an_unmanaged_process_is_given_to_no_request(
    world: World, programs: list[subprocess.Popen[str]]
) -> None:
    uuid = world.grant("a", "1g.10gb", 0)
    world.leave("a")
    unmanaged = hold(world, uuid, programs)
    world.verify()
    assert [(i.place, i.foreign) for i in world.cards[0].mig_instances] == [(("1g.10gb", 0), True)]
    assert refused(world, "b", "1g.10gb", 0).reason is Reason.NO_CAPACITY
    assert refused(world, "c", "7g.80gb", 0).reason is Reason.NO_CAPACITY
    unmanaged.kill()
    unmanaged.wait()
    world.verify()
    assert world.grant("b", "1g.10gb", 0) == uuid


def test_small_tenants_share_a_gpu_instance_by_its_compute_slices(world: World) -> None:
    uuids = {world.grant(name, "1c.3g.40gb", 0, part=part) for part, name in enumerate("abc")}
    assert len(uuids) == 3
    assert world.places() == [("3g.40gb", 0)]
    (instance,) = world.cards[0].mig_instances
    assert [(p.start, p.compute, p.kept) for p in instance.parts] == [(n, 1, False) for n in range(3)]
    (told,) = world.executor.warnings(world.held["a"])
    assert told == "1c.3g.40gb shares the memory of its 3g.40gb with others, without a limit"
    assert "0 of 3 compute slices free" in refused(world, "d", "1c.3g.40gb", 0).message
    assert refused(world, "d", "3g.40gb", 0).reason is Reason.NO_CAPACITY
    world.leave("a")
    world.leave("b")
    assert "2 of 3 compute slices free, 1 requested at 2" in refused(world, "d", "1c.3g.40gb", 0, part=2).message
    assert world.grant("e", "2c.3g.40gb", 0, part=0) not in uuids
    world.leave("e")
    world.leave("c")
    whole = world.grant("f", "3g.40gb", 0)
    (found,) = world.cut.layout(world.cards[0].uuid).instances
    assert [(p.uuid, p.compute) for p in found.parts] == [(whole, 3)]


def test_containers_get_the_capabilities_of_their_instance_also_from_a_pool_that_was_started_again(
    world: World,
) -> None:
    """The device nodes are below the root of the machine, as on a real card."""
    root = world.node.state.parent / "root"
    world.root = root
    world.start()
    world.grant("a", "2g.20gb", 2)
    below = root / "proc/driver/nvidia/capabilities/gpu0/mig/gi1"
    minors = [(below / path).read_text().split()[1] for path in ("access", "ci0/access")]
    expected = tuple(str(root / f"dev/nvidia-caps/nvidia-cap{minor}") for minor in minors)
    assert world.executor.edits(world.held["a"]).device_nodes == expected
    world.start()
    assert world.executor.edits(world.held["a"]).device_nodes == expected


def test_card_without_mig_and_unknown_profile_are_refused(world: World) -> None:
    assert refused(world, "a", "1g.10gb", 0, 2).reason is Reason.SELECTOR_MISMATCH
    assert refused(world, "a", "5g.50gb", 0).reason is Reason.SELECTOR_MISMATCH
    assert refused(world, "a", "3g.40gb", 1).reason is Reason.NO_CAPACITY


def test_restarted_pool_adopts_held_instances_and_knows_its_own(world: World) -> None:
    uuid = world.grant("a", "1g.10gb", 6)
    world.grant("b", "2g.20gb", 0)
    world.leave("b")
    world.start()
    assert world.verify() == []
    assert world.slots["a"].uuids == (uuid,)
    world.grant("c", "4g.40gb", 0)
    assert world.places() == [("4g.40gb", 0), ("1g.10gb", 6)]


def test_held_instances_are_created_again_at_the_same_placement_after_a_reboot(world: World) -> None:
    uuid = world.grant("a", "3g.40gb", 4)
    world.grant("b", "1g.10gb", 0)
    world.leave("b")
    assert simctl("reboot", world.node.state).returncode == 0
    world.start()
    assert world.places() == []
    assert world.verify() == [
        "the 3g.40gb at 4 of device 0 of allocation a did not exist any more and was created again"
    ]
    assert world.places() == [("3g.40gb", 4)]
    (again,) = world.slots["a"].uuids
    assert again != uuid
    assert dict(world.executor.edits(world.held["a"]).environment)["CUDA_VISIBLE_DEVICES"] == again
    assert world.verify() == []


def test_allocation_whose_instance_cannot_be_created_again_ends_with_a_reason(world: World) -> None:
    world.grant("a", "3g.40gb", 4)
    assert simctl("reboot", world.node.state).returncode == 0
    card = world.cards[0].uuid
    world.cut.enable(card, True)
    world.cut.create(card, "7g.80gb", 0)
    world.start()
    world.verify()
    assert world.ended == [("a", Reason.NO_CAPACITY)]


def test_changes_made_without_the_pool_are_reported(world: World) -> None:
    world.grant("a", "1g.10gb", 0)
    card = world.cards[0].uuid
    made = world.cut.create(card, "2g.20gb", 4)
    assert world.verify() == ["a 2g.20gb at 4 on device 0 was created from outside the pool"]
    assert [(i.place, i.fixed) for i in world.cards[0].mig_instances][1] == (("2g.20gb", 4), True)
    world.cut.destroy(card, made.id)
    assert world.verify() == ["a 2g.20gb at 4 on device 0 was destroyed from outside the pool"]
    assert world.verify() == []


def test_a_layout_of_an_operator_is_kept_and_comes_back_after_a_reboot(world: World) -> None:
    card = world.cards[0].uuid
    world.grant("a", "1g.10gb", 6)
    world.leave("a")
    places = [("3g.40gb", 4), ("2g.20gb", 0)]
    world.executor.arrange(card, places)
    assert sorted(world.places()) == sorted(places)
    assert refused(world, "b", "4g.40gb", 0).reason is Reason.NO_CAPACITY
    assert all(i.fixed and i.uuid for i in world.cards[0].mig_instances)
    assert simctl("reboot", world.node.state).returncode == 0
    world.start()
    assert sorted(world.places()) == sorted(places)
    world.grant("c", "2g.20gb", 0)
    with pytest.raises(CalabashError) as caught:
        world.executor.arrange(card, [("7g.80gb", 0)])
    assert caught.value.reason is Reason.CONFLICT
    world.leave("c")
    world.executor.arrange(card, [])
    assert world.places() == []
    world.grant("d", "4g.40gb", 0)


def test_instances_of_a_layout_are_created_again_when_there_is_room(world: World) -> None:
    card = world.cards[0].uuid
    world.executor.arrange(card, [("3g.40gb", 0), ("1g.10gb", 6)])
    (large, small) = world.cut.layout(card).instances
    for part in large.parts:
        world.cut.destroy_part(card, large.id, part.id)
    world.cut.destroy(card, large.id)
    other = world.cut.create(card, "1g.10gb", 0)
    world.verify()
    assert world.places() == [("1g.10gb", 0), ("1g.10gb", 6)]
    world.cut.destroy(card, other.id)
    world.verify()
    assert world.places() == [("3g.40gb", 0), ("1g.10gb", 6)]
    assert world.cut.layout(card).part(small.parts[0].uuid) is not None


def test_failed_foreign_instance_is_given_to_no_request(world: World) -> None:
    card = world.cards[0].uuid
    world.cut.enable(card, True)
    part = world.cut.create_part(card, world.cut.create(card, "1g.10gb", 0).id, 1)
    world.start()
    world.inventory.health.part_happened(card, part.uuid, HealthEvent.NEEDS_RESET, "XID 95")
    world.verify()
    assert [(i.place, i.foreign) for i in world.cards[0].mig_instances] == [(("1g.10gb", 0), True)]


def test_a_card_that_is_kept_in_another_mode_is_given_up_when_it_is_idle(world: World) -> None:
    card = world.cards[0].uuid
    world.grant("a", "1g.10gb", 0)
    world.inventory.health.note(card, mode="vgpu")
    world.verify()
    assert world.cut.layout(card).enabled
    world.leave("a")
    world.verify()
    assert not world.cut.layout(card).enabled


def test_instances_are_foreign_once_the_record_of_the_pools_instances_is_lost(world: World) -> None:
    world.grant("a", "1g.10gb", 0)
    world.leave("a")
    (world.home / "mig.json").write_text("{")
    world.start()
    assert [i.fixed for i in world.cards[0].mig_instances] == [True]


def test_many_at_once_get_instances_of_their_own(world: World) -> None:
    places = [(card, start) for card in (0, 1) for start in range(7)]
    with ThreadPoolExecutor(len(places)) as pool:
        for round_ in range(3):
            names = [f"{round_}-{card}-{start}" for card, start in places]
            asked = [
                pool.submit(world.grant, name, "1g.10gb", start, card)
                for name, (card, start) in zip(names, places, strict=True)
            ]
            uuids = [answer.result() for answer in asked]
            assert len(set(uuids)) == len(places)
            assert all(len(world.places(card)) == 7 for card in (0, 1))
            for name in names:
                world.leave(name)
    assert world.verify() == []


def test_hanging_card_does_not_block_another(tmp_path: Path) -> None:
    with world_at(tmp_path, timeout_s=1.5) as world:
        assert simctl("inject", world.node.state, "--gpu", 0, "hang", 60).returncode == 0
        assert refused(world, "a", "1g.10gb", 0).reason is Reason.TIMEOUT
        world.grant("b", "1g.10gb", 0, 1)
        assert world.verify() == []
        assert simctl("inject", world.node.state, "--gpu", 0, "recover").returncode == 0
        until(lambda: _answers(world), "the card to answer again")
        world.grant("c", "1g.10gb", 0)


def _answers(world: World) -> bool:
    try:
        world.driver.read(world.cards[0].uuid)
    except CalabashError:
        return False
    return True


# -- property --------------------------------------------------------------------------------------------------------

PARTS = ("1c.3g.40gb", "1c.3g.40gb", "2c.3g.40gb", "1c.2g.20gb", "2c.4g.40gb")
STEPS = ("grant", "grant", "grant", "leave", "leave", "restart", "crash", "foreign", "vacate", "reboot", "verify")


class Walk:
    """Random steps of a pool on two cards, and the conditions that hold after each."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.others: set[tuple[DeviceUuid, str, int]] = set()
        self.number = 0

    def step(self, what: str, dice: random.Random) -> None:
        getattr(self, what)(dice)
        self.check(settled=what == "verify")

    def grant(self, dice: random.Random) -> None:
        world = self.world
        card = dice.randrange(2)
        device = world.cards[card]
        assert device.mig is not None
        profile = dice.choice([*(p.name for p in device.mig.profiles), *PARTS])
        answer = MODE.fits(device, world.on(device), GpuRequest(mig=profile))
        if isinstance(answer, Misfit):
            return
        self.number += 1
        # the driver has room for what the planner grants
        world.grant(f"a{self.number}", answer.profile, answer.start, card, part=answer.part)

    def leave(self, dice: random.Random) -> None:
        if self.world.held:
            self.world.leave(dice.choice(sorted(self.world.held)))

    def restart(self, dice: random.Random) -> None:
        del dice
        self.world.start()
        self.world.verify()

    def crash(self, dice: random.Random) -> None:
        """Kill the pool in the middle of a grant: it is journalled, has no slot, and its entry is closed at the next start."""
        self.world.mortal.calls_left = dice.randrange(4)
        with suppress(Killed):
            self.grant(dice)
        self.world.mortal.calls_left = -1
        self.restart(dice)

    def foreign(self, dice: random.Random) -> None:
        """Create an instance without the pool, if the driver permits it."""
        card = self.world.cards[dice.randrange(2)]
        assert card.mig is not None
        if not self.world.cut.layout(card.uuid).enabled:
            return
        compute = dice.choice((1, 3))
        one = next(p for p in card.mig.profiles if p.compute == compute)
        start = dice.choice(one.starts)
        try:
            made = self.world.cut.create(card.uuid, one.name, start)
        except CalabashError:
            return
        for _ in range(dice.randint(1, one.compute)):
            self.world.cut.create_part(card.uuid, made.id, 1)
        self.others.add((card.uuid, one.name, start))
        self.world.verify()

    def vacate(self, dice: random.Random) -> None:
        card = self.world.cards[dice.randrange(2)]
        part = Slice(device=card.uuid, memory_mib=1, core_percent=100)
        record = replace_mode(self.world, "exclusive")
        record = replace(record, placement=replace(record.placement, slices=(part,)))
        busy = bool(self.world.on(card)) or any(key[0] == card.uuid for key in self.others)
        if busy:
            with pytest.raises(CalabashError):
                self.world.executor.vacate(record)
        else:
            self.world.executor.vacate(record)
            assert not self.world.cut.layout(card.uuid).enabled

    def reboot(self, dice: random.Random) -> None:
        assert simctl("reboot", self.world.node.state).returncode == 0
        self.others.clear()
        self.restart(dice)

    def verify(self, dice: random.Random) -> None:
        del dice
        self.world.verify()

    def check(self, *, settled: bool) -> None:
        world = self.world
        assert world.ended == []
        standing: dict[str, tuple[DeviceUuid, str, int]] = {}
        for card in world.cards[:2]:
            layout = world.cut.layout(card.uuid)
            for instance in layout.instances:
                for part in instance.parts:
                    standing[part.uuid] = (card.uuid, instance.profile, instance.start)
            shown = [i.place for i in card.mig_instances]
            assert settled is False or shown == [(i.profile, i.start) for i in layout.instances]
        uuids = [uuid for limits in world.slots.values() for uuid in limits.uuids]
        assert len(uuids) == len(set(uuids))
        for name, record in world.held.items():
            (has,) = record.placement.slices
            place = (has.device, split_profile(has.profile)[1], has.start)
            assert standing[world.slots[name].uuids[0]] == place
        for key in self.others:
            assert key in standing.values(), "what is not ours was destroyed"


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.lists(st.sampled_from(STEPS), min_size=10, max_size=60))
def test_random_steps_leave_held_and_foreign_instances_unchanged(
    tmp_path_factory: pytest.TempPathFactory, seed: int, steps: Sequence[str]
) -> None:
    dice = random.Random(seed)
    with world_at(tmp_path_factory.mktemp("walk") / "home") as world:
        walk = Walk(world)
        for what in steps:
            walk.step(what, dice)
