"""Binding devices to VFIO and returning them: a failed step is undone, and its error has a hint."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from calabash.adapters.host.pci.devices import PciTree
from calabash.adapters.host.pci.simulated import SimulatedKernel
from calabash.adapters.host.pci.simulated_bus import SimulatedPci
from calabash.adapters.host.pci.vfio import Vfio, is_vfio
from calabash.adapters.host.pci.virtual_functions import VirtualFunctions
from calabash.adapters.host.sysfs_writer import BlockedError, HelperWriter
from calabash.model.errors import CalabashError, Reason

CARD, SOUND = "0000:65:00.0", "0000:65:00.1"
UUID = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def kernel(tmp_path: Path) -> SimulatedKernel:
    kernel = SimulatedKernel(tmp_path)
    kernel.plug(SimulatedPci(address=CARD, group=7, vfs_total=2))
    return kernel


def _vfio(kernel: SimulatedKernel, writer: object = None, **more: object) -> Vfio:
    more.setdefault("load", lambda _: None)
    return Vfio(PciTree(kernel.root), writer or kernel, **more)  # type: ignore[arg-type]


def _override(kernel: SimulatedKernel) -> str:
    return (kernel.root / f"sys/bus/pci/devices/{CARD}/driver_override").read_text().strip()


class Failing:
    """Kernel writer that fails the writes to one chosen file, and performs all others."""

    def __init__(self, kernel: SimulatedKernel, file: str, how: OSError) -> None:
        self._kernel, self._file, self._how = kernel, file, how
        self.written: list[tuple[str, str]] = []

    def write(self, path: Path, text: str, *, timeout_s: float) -> None:
        self.written.append((path.name, text))
        if path.name == self._file:
            raise self._how
        self._kernel.write(path, text, timeout_s=timeout_s)


class Open:
    """Process that has a file open."""

    def __init__(self, path: Path) -> None:
        program = "import os, sys; os.open(sys.argv[1], os.O_RDONLY); print(flush=True); sys.stdin.read()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def end(self) -> None:
        if self._process.returncode is None:
            self._process.communicate(timeout=60)


@pytest.fixture
def opened() -> Iterator[Callable[[Path], Open]]:
    started: list[Open] = []

    def start(path: Path) -> Open:
        started.append(Open(path))
        return started[-1]

    yield start
    for process in started:
        process.end()


def test_a_device_goes_to_vfio_and_comes_back_to_the_driver_it_had(kernel: SimulatedKernel) -> None:
    vfio, tree = _vfio(kernel), PciTree(kernel.root)
    assert vfio.bind(CARD) == kernel.root / "dev/vfio/7"
    assert (tree.get(CARD).driver, _override(kernel)) == ("vfio-pci", "vfio-pci")
    assert vfio.bind(CARD).exists()  # asked again it is there already
    vfio.give_back(CARD, "nvidia")
    assert (tree.get(CARD).driver, _override(kernel)) == ("nvidia", "(null)")
    assert not (kernel.root / "dev/vfio/7").exists()
    vfio.give_back(CARD, "nvidia")
    assert tree.get(CARD).driver == "nvidia"


def test_a_device_that_had_no_driver_has_none_when_it_is_back(kernel: SimulatedKernel) -> None:
    kernel.write(kernel.root / f"sys/bus/pci/devices/{CARD}/driver/unbind", CARD, timeout_s=60)
    _vfio(kernel).bind(CARD)
    _vfio(kernel).give_back(CARD, "")
    assert PciTree(kernel.root).get(CARD).driver == ""


def test_without_iommu_nothing_is_tried(tmp_path: Path) -> None:
    kernel = SimulatedKernel(tmp_path)
    kernel.plug(SimulatedPci(address=CARD, group=-1))
    with pytest.raises(CalabashError) as caught:
        _vfio(kernel).bind(CARD)
    assert "intel_iommu=on" in caught.value.hint
    assert PciTree(tmp_path).get(CARD).driver == "nvidia"


def test_a_group_that_confines_nothing_is_none(kernel: SimulatedKernel) -> None:
    (kernel.root / "sys/kernel/iommu_groups/7/name").write_text("vfio-noiommu\n")
    with pytest.raises(CalabashError) as caught:
        _vfio(kernel).bind(CARD)
    assert "no-IOMMU" in caught.value.message


def test_modules_are_loaded_and_where_they_are_missing_nothing_is_unbound(tmp_path: Path) -> None:
    kernel = SimulatedKernel(tmp_path, modules=())
    kernel.plug(SimulatedPci(address=CARD, group=7))
    for absent in ("vfio-pci", "vfio_iommu_type1"):
        with pytest.raises(CalabashError) as caught:
            _vfio(kernel).bind(CARD)
        assert caught.value.hint == f"modprobe {absent}"
        assert PciTree(tmp_path).get(CARD).driver == "nvidia"
        kernel.load(absent.replace("-", "_"))
    bare = SimulatedKernel(tmp_path / "loads", modules=())
    bare.plug(SimulatedPci(address=CARD, group=7))
    assert _vfio(bare, load=bare.load).bind(CARD).exists()


def test_a_bridge_stays_with_the_machine(kernel: SimulatedKernel) -> None:
    kernel.plug(SimulatedPci(address="0000:00:01.0", class_code=0x060400, group=1, driver="pcieport"))
    with pytest.raises(CalabashError) as caught:
        _vfio(kernel).bind("0000:00:01.0")
    assert "bridge" in caught.value.message


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EINVAL, "no IOMMU"),
        (errno.ENODEV, "driver_override"),
        (errno.EBUSY, "another driver has bound it meanwhile"),
        (errno.ENOENT, "not loaded"),
        (errno.EACCES, "Permission denied"),
    ],
)
def test_a_refused_bind_is_told_with_its_cause_and_the_host_has_its_device_again(
    kernel: SimulatedKernel, number: int, words: str
) -> None:
    writer = Failing(kernel, "bind", OSError(number, os.strerror(number)))
    with pytest.raises(CalabashError) as caught:
        _vfio(kernel, writer).bind(CARD)
    assert words in caught.value.message
    assert errno.errorcode[number] in caught.value.message
    assert caught.value.hint
    assert (PciTree(kernel.root).get(CARD).driver, _override(kernel)) == ("nvidia", "(null)")
    assert "new_id" not in [name for name, _ in writer.written]


def test_an_unbind_that_blocks_is_given_up_in_time_and_told_with_who_holds_it(
    kernel: SimulatedKernel, opened: Callable[[Path], Open]
) -> None:
    vfio = _vfio(kernel, timeout_s=0.2, holders=lambda node: f"whoever has {node.name}")
    holder = opened(vfio.bind(CARD))
    with pytest.raises(CalabashError) as caught:
        vfio.give_back(CARD, "nvidia")
    assert caught.value.reason is Reason.TIMEOUT
    assert "held by whoever has 7" in caught.value.message
    assert PciTree(kernel.root).get(CARD).driver == "vfio-pci"
    holder.end()
    vfio.give_back(CARD, "nvidia")
    assert PciTree(kernel.root).get(CARD).driver == "nvidia"


def test_a_driver_that_does_not_come_back_is_told_with_what_to_do(
    kernel: SimulatedKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calabash.adapters.host.pci.vfio._DRIVER_APPEARS_S", 0.05)
    vfio = _vfio(kernel)
    vfio.bind(CARD)
    (kernel.root / f"sys/bus/pci/devices/{CARD}/driver-of-the-host").write_text("gone\n")
    with pytest.raises(CalabashError) as caught:
        vfio.give_back(CARD, "nvidia")
    assert "modprobe nvidia" in caught.value.hint


def test_a_device_that_was_pulled_out_needs_no_return(kernel: SimulatedKernel) -> None:
    _vfio(kernel).give_back("0000:99:00.0", "nvidia")
    assert PciTree(kernel.root).find("0000:99:00.0") is None


@pytest.mark.parametrize(
    ("name", "vfio"), [("vfio-pci", True), ("nvgrace_gpu_vfio_pci", True), ("nvidia", False), ("", False)]
)
def test_variants_of_the_driver_are_known_by_their_names(name: str, vfio: bool) -> None:
    assert is_vfio(name) is vfio


# -- parts of a card -----------------------------------------------------------------------------------------------------


def test_virtual_functions_are_made_without_host_drivers_and_unmade(kernel: SimulatedKernel) -> None:
    tree, functions = PciTree(kernel.root), VirtualFunctions(PciTree(kernel.root), kernel)
    made = functions.make(CARD, 2)
    assert made == ("0000:65:00.1", "0000:65:00.2")
    assert [(tree.get(a).driver, tree.get(a).physical) for a in made] == [("", CARD)] * 2
    assert tree.get(made[0]).group != tree.get(made[1]).group
    assert functions.make(CARD, 2) == made
    vfio = _vfio(kernel)
    vfio.bind(made[0])
    vfio.give_back(made[0], "nvidia")  # does not return to a driver: its card says so
    assert tree.get(made[0]).driver == ""
    functions.unmake(CARD)
    assert (tree.get(CARD).vfs, tree.find(made[0])) == ((), None)


@pytest.mark.parametrize(("count", "words"), [(3, "it can have 2"), (1, "it has 2 and the number changes from none")])
def test_a_number_of_functions_that_cannot_be_is_told(kernel: SimulatedKernel, count: int, words: str) -> None:
    functions = VirtualFunctions(PciTree(kernel.root), kernel)
    if count == 1:
        functions.make(CARD, 2)
    with pytest.raises(CalabashError) as caught:
        functions.make(CARD, count)
    assert words in caught.value.message
    assert caught.value.hint


def test_a_card_without_sr_iov_says_so(kernel: SimulatedKernel) -> None:
    kernel.plug(SimulatedPci(address=SOUND, group=8))
    with pytest.raises(CalabashError) as caught:
        VirtualFunctions(PciTree(kernel.root), kernel).make(SOUND, 1)
    assert "no SR-IOV" in caught.value.message


def test_functions_in_use_are_not_waited_for_for_ever(kernel: SimulatedKernel, opened: Callable[[Path], Open]) -> None:
    functions = VirtualFunctions(PciTree(kernel.root), kernel, timeout_s=0.2)
    holder = opened(_vfio(kernel).bind(functions.make(CARD, 2)[0]))
    with pytest.raises(CalabashError) as caught:
        functions.unmake(CARD)
    assert caught.value.reason is Reason.TIMEOUT
    holder.end()
    functions.unmake(CARD)
    assert PciTree(kernel.root).get(CARD).vfs == ()


def test_mediated_devices_are_made_by_name_and_type_until_none_fit(kernel: SimulatedKernel) -> None:
    parent = "0000:66:00.0"
    kernel.plug(SimulatedPci(address=parent, group=9, types={"nvidia-222": "framebuffer=1024M, max_instance=1"}))
    functions = VirtualFunctions(PciTree(kernel.root), kernel)
    functions.make_mediated(parent, "nvidia-222", UUID)
    functions.make_mediated(parent, "nvidia-222", UUID)
    assert functions.mediated(UUID)
    for kind, uuid, words in (
        ("nvidia-222", UUID.replace("1", "2"), "no more of this type"),
        ("nvidia-9", UUID.replace("1", "3"), "does not offer"),
        ("../../x", UUID, "not a valid mediated device"),
        ("nvidia-222", "x", "not a valid mediated device"),
    ):
        with pytest.raises(CalabashError) as caught:
            functions.make_mediated(parent, kind, uuid)
        assert words in caught.value.message
    functions.unmake_mediated(UUID)
    functions.unmake_mediated(UUID)
    assert not functions.mediated(UUID)


def test_a_type_of_the_drivers_list_is_set_and_unset(kernel: SimulatedKernel) -> None:
    functions = VirtualFunctions(PciTree(kernel.root), kernel)
    with pytest.raises(CalabashError) as caught:
        functions.set_type(CARD, "588")
    assert "vGPU host driver" in caught.value.hint
    place = kernel.root / f"sys/bus/pci/devices/{CARD}/nvidia/current_vgpu_type"
    place.parent.mkdir()
    place.write_text("0\n")
    functions.set_type(CARD, "588")
    assert place.read_text() == "588\n"
    functions.set_type(CARD, "")
    assert place.read_text() == "0\n"


# -- the helper that writes ----------------------------------------------------------------------------------------------


@pytest.fixture
def writer() -> Iterator[HelperWriter]:
    helper = HelperWriter()
    yield helper
    helper.close()


def test_the_helper_writes_and_tells_the_kernels_numbers(writer: HelperWriter, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    writer.write(tmp_path / "file", "vfio-pci\n", timeout_s=60)
    assert (tmp_path / "file").read_text() == "vfio-pci\n"
    with pytest.raises(FileNotFoundError):
        writer.write(tmp_path / "none", "x", timeout_s=60)


def test_a_write_that_blocks_costs_a_process_and_not_the_caller(writer: HelperWriter, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "blocks")  # to open it for writing waits for a reader, as an unbind does for a user
    (tmp_path / "file").touch()
    writer.write(tmp_path / "file", "1", timeout_s=60)
    with pytest.raises(BlockedError):  # no reader ever comes: a caller that waits for the write does not return
        writer.write(tmp_path / "blocks", "x", timeout_s=0.1)
    assert writer.blocked() == 1
    writer.write(tmp_path / "file", "2", timeout_s=60)
    assert (tmp_path / "file").read_text() == "2"
    reader = os.open(tmp_path / "blocks", os.O_RDONLY)
    assert os.read(reader, 10) == b"x"  # what blocked went on by itself
    os.close(reader)


def test_a_helper_that_was_killed_is_replaced(writer: HelperWriter, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    writer.write(tmp_path / "file", "1", timeout_s=60)
    assert writer._helper is not None
    writer._helper.kill()
    writer._helper.wait(timeout=60)
    writer.write(tmp_path / "file", "2", timeout_s=60)
    assert (tmp_path / "file").read_text() == "2"
