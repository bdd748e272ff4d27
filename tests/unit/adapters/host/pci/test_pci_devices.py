"""Parsing of the kernel's PCI tree: strict, with an error for invalid contents."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from calabash.adapters.host.pci.devices import PciTree, memory_in_name, pci_address
from calabash.adapters.host.pci.simulated import SimulatedKernel
from calabash.adapters.host.pci.simulated_bus import SimulatedPci
from calabash.model.errors import CalabashError, Reason

CARD, SOUND = "0000:65:00.0", "0000:65:00.1"


@pytest.fixture
def kernel(tmp_path: Path) -> SimulatedKernel:
    kernel = SimulatedKernel(tmp_path)
    kernel.plug(SimulatedPci(address=CARD, group=7, numa_node=1, vfs_total=4))
    kernel.plug(SimulatedPci(address=SOUND, group=7, class_code=0x040300, driver="snd_hda_intel"))
    return kernel


def test_a_device_is_read_with_its_driver_its_group_and_its_neighbours(kernel: SimulatedKernel) -> None:
    tree = PciTree(kernel.root)
    card = tree.get(CARD)
    assert (card.vendor, card.class_code, card.driver) == (0x10DE, 0x030200, "nvidia")
    assert (card.group, card.numa_node, card.vfs_total) == (7, 1, 4)
    assert (card.physical, card.vfs, card.is_bridge) == ("", (), False)
    assert [m.address for m in tree.members(7)] == [CARD, SOUND] == list(tree.addresses())
    assert tree.get(SOUND).card == card.card


def test_addresses_are_written_as_the_kernel_writes_them() -> None:
    assert pci_address("00000000:65:00.0") == "0000:65:00.0"
    assert pci_address("00010000:E1:1F.7") == "10000:e1:1f.7"
    assert [pci_address(text) for text in ("", "65:00.0", "0000:65:00.8", "0000:65:20.0", "../../etc")] == [""] * 5


def test_what_is_no_address_is_never_a_path(kernel: SimulatedKernel) -> None:
    with pytest.raises(CalabashError) as caught:
        PciTree(kernel.root).find("../../../etc")
    assert "not a PCI address" in caught.value.message


def test_a_device_that_is_not_there_is_none_or_an_error_where_it_is_needed(kernel: SimulatedKernel) -> None:
    assert PciTree(kernel.root).find("0000:99:00.0") is None
    with pytest.raises(CalabashError) as caught:
        PciTree(kernel.root).get("0000:99:00.0")
    assert caught.value.reason is Reason.NOT_FOUND


@pytest.mark.parametrize(
    ("file", "text"),
    [("vendor", "nvidia"), ("class", "0x03020000000"), ("numa_node", "1e9"), ("vendor", "0x" + "1" * 70_000)],
)
def test_files_that_make_no_sense_are_told_and_not_guessed_at(kernel: SimulatedKernel, file: str, text: str) -> None:
    tree = PciTree(kernel.root)
    (tree.directory(CARD) / file).write_text(text)
    with pytest.raises(CalabashError) as caught:
        tree.find(CARD)
    assert caught.value.reason is Reason.BAD_FILE


def test_a_machine_without_iommu_says_so(tmp_path: Path) -> None:
    kernel = SimulatedKernel(tmp_path)
    kernel.plug(SimulatedPci(address=CARD, group=-1))
    assert (PciTree(tmp_path).has_iommu(), PciTree(tmp_path).get(CARD).group) == (False, -1)
    assert not PciTree(tmp_path / "nowhere").has_iommu()
    assert PciTree(tmp_path / "nowhere").addresses() == ()


def test_the_files_by_which_programs_reach_a_device_are_found_below_it(kernel: SimulatedKernel) -> None:
    tree = PciTree(kernel.root)
    place = tree.directory(CARD) / "drm" / "renderD128"
    place.mkdir(parents=True)
    (place / "dev").write_text("226:128\n")
    (place / "uevent").write_text("MAJOR=226\nMINOR=128\nDEVNAME=dri/renderD128\n")
    assert tree.nodes(CARD) == (kernel.root / "dev/dri/renderD128",)
    (place / "uevent").write_text("DEVNAME=../../etc/passwd\n")
    assert tree.nodes(CARD) == ()


def test_a_variant_driver_made_for_the_device_is_the_kernels_choice(kernel: SimulatedKernel) -> None:
    tree = PciTree(kernel.root)
    assert tree.vfio_driver(CARD) == "vfio-pci"
    aliases = kernel.root / "lib/modules" / os.uname().release / "modules.alias"
    aliases.parent.mkdir(parents=True)
    aliases.write_text(
        "alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci\n"
        "alias vfio_pci:v000010DEd000020B0sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci\n"
        "alias pci:v000010DEd000020B0sv*sd*bc*sc*i* nouveau\n"
    )
    assert tree.vfio_driver(CARD) == "nvgrace_gpu_vfio_pci"
    assert tree.vfio_driver("0000:99:00.0") == "vfio-pci"


def test_kinds_of_virtual_gpus_are_read_with_their_memory(kernel: SimulatedKernel) -> None:
    tree = PciTree(kernel.root)
    listed = tree.directory(CARD) / "nvidia"
    listed.mkdir()
    (listed / "creatable_vgpu_types").write_text("ID    : vGPU Name\n588   : NVIDIA L4-24Q\n590 : NVIDIA A100-1-5CME\n")
    kinds = tree.virtual_types(CARD)
    assert [(k.id, k.name, k.memory_mib) for k in kinds] == [
        ("588", "NVIDIA L4-24Q", 24576),
        ("590", "NVIDIA A100-1-5CME", 5120),
    ]
    kernel.plug(
        SimulatedPci(
            address="0000:66:00.0",
            group=9,
            types={"nvidia-222": "num_heads=4, frl_config=45, framebuffer=1024M, max_instance=16"},
        )
    )
    (kind,) = tree.virtual_types("0000:66:00.0")
    assert (kind.id, kind.memory_mib, kind.available) == ("nvidia-222", 1024, 16)
    assert memory_in_name("Some card") == 0
