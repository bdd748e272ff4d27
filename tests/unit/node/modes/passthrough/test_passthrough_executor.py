"""Attachment of cards to virtual machines and their return on a simulated machine, also after crashes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from calabash.adapters.host.pci.simulated import SimulatedKernel
from calabash.adapters.host.pci.simulated_bus import SimulatedPci
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import Device, DeviceReading, DeviceUuid, Health, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement, Slice
from calabash.node.devices.inventory import Inventory
from calabash.node.modes.passthrough.executor import PassthroughExecutor
from calabash.node.modes.passthrough.machine import Machine, simulated_machine
from calabash.node.modes.protocol import NodeTools

CARDS = {"GPU-a": "00000000:65:00.0", "GPU-b": "00000000:66:00.0"}
A, B, SOUND = "0000:65:00.0", "0000:66:00.0", "0000:65:00.1"


class Driver:
    """Driver that lists the cards that are not bound to VFIO."""

    vendor = "nvidia"

    def __init__(self, root: Path, *, mig: bool = False) -> None:
        self._root, self._mig = root, mig
        self.apart_count = 0

    def devices(self) -> tuple[Device, ...]:
        here = [(u, a) for u, a in CARDS.items() if not self._gone(a)]
        return tuple(
            Device(
                uuid=DeviceUuid(uuid),
                index=index,
                vendor="nvidia",
                model="NVIDIA A100-PCIE-40GB",
                memory_mib=40960,
                pci_bus_id=address,
                mig_enabled=self._mig,
            )
            for index, (uuid, address) in enumerate(here)
        )

    def read(self, uuid: DeviceUuid) -> DeviceReading:
        if self._gone(CARDS[uuid]):
            raise CalabashError("no such card", reason=Reason.NOT_FOUND)
        return DeviceReading(uuid=uuid, memory_used_mib=0, utilization_percent=0, temperature_c=30, power_w=9.0)

    def released(self) -> AbstractContextManager[None]:
        self.apart_count += 1
        return nullcontext()

    def _gone(self, address: str) -> bool:
        driver = self._root / "sys/bus/pci/devices" / address[4:] / "driver"
        return driver.is_symlink() and driver.readlink().name == "vfio-pci"


class World:
    """Machine of two cards with the inventory and the executor of its agent."""

    def __init__(self, home: Path, *, mig: bool = False) -> None:
        self.root = home / "root"
        self.home = home
        self.driver = Driver(self.root, mig=mig)
        self.kernel = SimulatedKernel(self.root)
        self.start()

    def start(self, machine: Callable[[Machine], Machine] = lambda m: m) -> PassthroughExecutor:
        """Open the inventory and the executor as a pool does at its start."""
        self.inventory = Inventory([cast("Any", self.driver)])
        tools = NodeTools(
            home=self.home,
            inventory=self.inventory,
            library=self.home / "none",
            environment={"CALABASH_SIM": "node.state"},
            device_root=self.root,
        )
        made = machine(simulated_machine(self.root, self.inventory.devices()))
        self.executor = PassthroughExecutor(tools, made)
        self.executor.start()
        return self.executor

    def driver_of(self, address: str) -> str:
        found = self.executor.machine.tree.find(address)
        return found.driver if found is not None else "gone"

    def health(self, uuid: str) -> Health:
        return next(d.health for d in self.inventory.devices() if d.uuid == uuid)

    def back(self) -> None:
        """Wait until all devices of ended allocations are detached."""
        until = time.monotonic() + 60
        while self.executor._detaching._thread is not None:
            assert time.monotonic() < until, self.executor.verify([])
            time.sleep(0.01)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def record(name: str, *uuids: str, profile: str = "") -> AllocationRecord:
    parts = tuple(Slice(device=DeviceUuid(u), memory_mib=1, core_percent=100, vf=profile) for u in uuids)
    return AllocationRecord(
        id=AllocationId(name),
        state=AllocationState.GRANTED,
        request=GpuRequest(mode=ModeName("passthrough"), vf=profile, standing=True, count=len(uuids)),
        placement=Placement(node=NodeName("n"), mode=ModeName("passthrough"), slices=parts),
        uid=0,
    )


def test_card_is_bound_and_marked_as_lent_and_is_tested_after_its_return(world: World) -> None:
    held = record("a1", "GPU-a")
    world.executor.prepare(held)
    world.executor.provide(held)
    world.executor.provide(held)  # asked again it answers the same
    assert (world.driver_of(A), world.driver_of(B)) == ("vfio-pci", "nvidia")
    edits = world.executor.edits(held)
    assert edits.device_nodes == ("/dev/vfio/vfio", "/dev/vfio/1")
    environment = dict(edits.environment)
    assert environment["CALABASH_PCI"] == A
    assert environment["PCI_RESOURCE_CALABASH_DEV_GPUS"] == A
    assert environment["PCI_RESOURCE_NVIDIA_COM_NVIDIA_A100-PCIE-40GB"] == A
    world.executor.leave(held)
    world.back()
    assert world.driver_of(A) == "nvidia"
    assert world.health("GPU-a") is Health.RECOVERING
    assert not (world.home / "passthrough.json").exists()


def test_lent_card_is_neither_lost_nor_suspect_and_the_other_card_is_monitored(world: World) -> None:
    world.executor.provide(record("a1", "GPU-a"))
    for _ in range(3):
        assert world.inventory.observe(idle=lambda _: False) == []
    assert (world.health("GPU-a"), world.health("GPU-b")) == (Health.HEALTHY, Health.HEALTHY)
    assert world.inventory.reading(DeviceUuid("GPU-a")) is None
    assert world.inventory.reading(DeviceUuid("GPU-b")) is not None


def test_missing_driver_while_a_card_is_lent_does_not_change_its_health(world: World) -> None:
    with world.inventory.lent.quiet():
        (world.root / "sys/bus/pci/devices" / B / "driver").unlink()
        (world.root / "sys/bus/pci/devices" / B / "driver").symlink_to(world.root / "sys/bus/pci/drivers/vfio-pci")
        assert world.inventory.observe(idle=lambda _: True) == []
    assert [c.after for c in world.inventory.observe(idle=lambda _: True)] == [Health.SUSPECT]


def test_next_pool_keeps_a_held_card_and_detaches_the_card_of_an_ended_allocation(world: World) -> None:
    held = record("a1", "GPU-a")
    world.executor.provide(held)
    world.start().recover([held])
    assert [d.uuid for d in world.inventory.devices()] == ["GPU-a", "GPU-b"]  # the driver lists the second only
    assert world.driver_of(A) == "vfio-pci"
    world.start().recover([])
    world.back()
    assert world.driver_of(A) == "nvidia"
    assert world.inventory.lent.loan(DeviceUuid("GPU-a")) is None


def test_crash_before_the_card_was_bound_is_undone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedKernel, "write", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        world.executor.provide(record("a1", "GPU-a"))
    monkeypatch.undo()
    assert (world.home / "passthrough.json").exists()  # written down first
    world.start().recover([])
    world.back()
    assert world.driver_of(A) == "nvidia"
    assert not (world.home / "passthrough.json").exists()


def test_failure_with_the_second_card_returns_the_first(world: World) -> None:
    world.kernel.plug(SimulatedPci(address="0000:66:1f.0", group=2, class_code=0x020000, driver="e1000e"))
    held = record("a1", "GPU-a", "GPU-b")
    with pytest.raises(CalabashError) as caught:
        world.executor.provide(held)
    assert "group 2" in caught.value.message
    world.executor.leave(held)  # what the agent does then
    world.back()
    assert (world.driver_of(A), world.driver_of(B)) == ("nvidia", "nvidia")


def test_audio_function_of_a_card_is_attached_with_it(world: World) -> None:
    world.kernel.plug(SimulatedPci(address=SOUND, group=1, class_code=0x040300, driver="snd_hda_intel"))
    held = record("a1", "GPU-a")
    world.executor.provide(held)
    assert (world.driver_of(A), world.driver_of(SOUND)) == ("vfio-pci", "vfio-pci")
    environment = dict(world.executor.edits(held).environment)
    assert (environment["CALABASH_PCI"], environment["CALABASH_PCI_BESIDE"]) == (A, SOUND)
    assert environment["PCI_RESOURCE_CALABASH_DEV_GPUS"] == A, "KubeVirt counts devices: it has asked for one"
    world.executor.leave(held)
    world.back()
    assert (world.driver_of(A), world.driver_of(SOUND)) == ("nvidia", "snd_hda_intel")


def test_card_with_mig_or_virtual_functions_or_open_files_is_refused(tmp_path: Path) -> None:
    divided = World(tmp_path / "mig", mig=True)
    with pytest.raises(CalabashError) as caught:
        divided.executor.provide(record("a1", "GPU-a"))
    assert "MIG" in caught.value.message
    world = World(tmp_path / "open")
    node = world.root / "dev/dri/renderD128"
    node.parent.mkdir(parents=True)
    node.touch()
    below = world.root / "sys/bus/pci/devices" / A / "drm/renderD128"
    below.mkdir(parents=True)
    (below / "dev").write_text("226:128\n")
    (below / "uevent").write_text("DEVNAME=dri/renderD128\n")
    users = {"count": 0}

    def looked(machine: Machine) -> Machine:
        class Watched(Machine):
            def users(self, nodes: Any) -> str:
                users["count"] += node in nodes
                return "pid 7 (nvidia-persistenced)" if node in nodes else ""

        return Watched(
            root=machine.root,
            writer=machine.writer,
            vfio=machine.vfio,
            functions=machine.functions,
            apart=machine.apart,
        )

    with pytest.raises(CalabashError) as caught:
        world.start(looked).provide(record("a1", "GPU-a"))
    assert "open: pid 7" in caught.value.message
    assert "-pm 0" in caught.value.hint
    assert world.driver_of(A) == "nvidia"


def test_pci_device_that_is_no_gpu_is_refused(world: World) -> None:
    (world.root / "sys/bus/pci/devices" / A / "class").write_text("0x010802\n")
    with pytest.raises(CalabashError) as caught:
        world.executor.prepare(record("a1", "GPU-a"))
    assert "is no GPU" in caught.value.message


def test_virtual_functions_are_attached_singly_and_removed_with_the_last(world: World) -> None:
    (profile,) = next(d for d in world.inventory.devices() if d.uuid == "GPU-a").vf_profiles
    assert (profile.name, profile.count, profile.memory_mib) == ("vf", 16, 2560)
    first, second = record("a1", "GPU-a", profile="vf"), record("a2", "GPU-a", profile="vf")
    for held in (first, second):
        world.executor.provide(held)
    given = [dict(world.executor.edits(held).environment)["CALABASH_PCI"] for held in (first, second)]
    assert len(set(given)) == 2
    assert [world.driver_of(address) for address in given] == ["vfio-pci"] * 2
    assert world.driver_of(A) == "nvidia"  # the card itself stays
    assert world.inventory.lent.loan(DeviceUuid("GPU-a")) is None
    with pytest.raises(CalabashError) as caught:
        world.executor.provide(record("a3", "GPU-a"))
    assert "is attached for allocation a1" in caught.value.message
    world.executor.leave(first)
    world.back()
    assert [world.driver_of(address) for address in given] == ["", "vfio-pci"]
    world.executor.leave(second)
    world.back()
    assert [world.driver_of(address) for address in given] == ["gone", "gone"]


def test_mediated_device_is_created_for_its_allocation_and_removed(tmp_path: Path) -> None:
    kernel = SimulatedKernel(tmp_path / "root")
    types = {"nvidia-222": "num_heads=4, framebuffer=8192M, max_instance=2"}
    kernel.plug(SimulatedPci(address=A, group=1, types=types))
    world = World(tmp_path)
    (profile,) = next(d for d in world.inventory.devices() if d.uuid == "GPU-a").vf_profiles
    assert (profile.name, profile.memory_mib, profile.count) == ("nvidia-222", 8192, 2)
    held = record("a1", "GPU-a", profile="nvidia-222")
    world.executor.provide(held)
    environment = dict(world.executor.edits(held).environment)
    uuid = environment["CALABASH_MDEV"]
    assert environment["MDEV_PCI_RESOURCE_CALABASH_DEV_GPUS"] == uuid
    assert world.executor.machine.functions.mediated(uuid)
    world.executor.leave(held)
    world.back()
    assert not world.executor.machine.functions.mediated(uuid)


def test_virtual_function_gets_a_vgpu_type_and_loses_it_at_the_end(world: World) -> None:
    functions = world.executor.machine.functions.make(A, 16)
    listed = world.root / "sys/bus/pci/devices" / functions[0] / "nvidia"
    listed.mkdir()
    (listed / "creatable_vgpu_types").write_text("ID : vGPU Name\n945 : NVIDIA A100-10C\n")
    (listed / "current_vgpu_type").write_text("0\n")
    world.start()
    (profile,) = next(d for d in world.inventory.devices() if d.uuid == "GPU-a").vf_profiles
    assert (profile.name, profile.memory_mib, profile.count) == ("NVIDIA A100-10C", 10240, 1)
    held = record("a1", "GPU-a", profile="NVIDIA A100-10C")
    world.executor.provide(held)
    assert (listed / "current_vgpu_type").read_text() == "945\n"
    assert dict(world.executor.edits(held).environment)["CALABASH_PCI"] == functions[0]
    with pytest.raises(CalabashError) as caught:
        world.executor.provide(record("a2", "GPU-a", profile="NVIDIA A100-10C"))
    assert caught.value.reason is Reason.NO_CAPACITY
    world.executor.leave(held)
    world.back()
    assert (listed / "current_vgpu_type").read_text() == "0\n"


def _offered(world: World) -> dict[str, int]:
    world.executor._offer_again_s = 0.0
    return {p.name: p.count for d in world.inventory.devices() if d.uuid == "GPU-a" for p in d.vf_profiles}


def test_profiles_that_the_driver_offers_later_are_published_with_attached_ones(world: World) -> None:
    assert _offered(world) == {"vf": 16}
    functions = world.executor.machine.functions.make(A, 2)
    for function in functions:
        listed = world.root / "sys/bus/pci/devices" / function / "nvidia"
        listed.mkdir()
        (listed / "creatable_vgpu_types").write_text("ID : vGPU Name\n945 : NVIDIA A100-10C\n")
        (listed / "current_vgpu_type").write_text("0\n")
    assert _offered(world) == {"vf": 16}, "it has not looked again"
    world.executor.verify([])
    assert _offered(world) == {"NVIDIA A100-10C": 2}
    held = record("a1", "GPU-a", profile="NVIDIA A100-10C")
    world.executor.provide(held)
    world.executor.verify([held])
    assert _offered(world) == {"NVIDIA A100-10C": 2}
    for function in functions:  # with one of that size no other one has room
        (world.root / "sys/bus/pci/devices" / function / "nvidia/creatable_vgpu_types").write_text("ID : vGPU Name\n")
    world.executor.verify([held])
    assert _offered(world) == {"NVIDIA A100-10C": 1}
    world.executor.leave(held)
    world.back()


def test_attached_mediated_devices_count_in_the_profiles(tmp_path: Path) -> None:
    kernel = SimulatedKernel(tmp_path / "root")
    kernel.plug(SimulatedPci(address=A, group=1, types={"nvidia-222": "framebuffer=8192M, max_instance=2"}))
    world = World(tmp_path)
    held = [record(name, "GPU-a", profile="nvidia-222") for name in ("a1", "a2")]
    for count in (1, 2):
        world.executor.provide(held[count - 1])
        world.executor.verify(held[:count])
        assert _offered(world) == {"nvidia-222": 2}
    world.start()  # a pool that begins anew learns what is out with the first look
    world.executor.verify(held)
    assert _offered(world) == {"nvidia-222": 2}
    for one in held:
        world.executor.leave(one)
    world.back()
    world.executor.verify([])
    assert _offered(world) == {"nvidia-222": 2}


def test_damaged_file_of_attached_devices_is_logged_and_treated_as_empty(world: World) -> None:
    world.executor.provide(record("a1", "GPU-a"))
    (world.home / "passthrough.json").write_text("{")
    world.start().recover([])
    assert world.driver_of(A) == "vfio-pci"
