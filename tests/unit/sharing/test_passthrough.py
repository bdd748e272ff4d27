"""Tests of sharing mode passthrough: whole devices, virtual functions, and IOMMU groups that can be assigned."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.model.device import Device, DeviceUuid, VfProfile
from calabash.model.errors import CalabashError, Reason
from calabash.model.mig import MigInstance
from calabash.model.request import ComputePolicy, GpuRequest, Isolation, ModeName, Slice
from calabash.sharing.passthrough import (
    MODE,
    GroupMember,
    card_functions,
    iommu_group_obstacle,
    kubevirt_variable,
    vendor_resource,
)
from calabash.sharing.protocol import HeldSlice, Misfit
from calabash.sharing.registry import fits, mode_for

CARD = Device(
    uuid=DeviceUuid("GPU-1"),
    index=0,
    vendor="nvidia",
    model="A100",
    memory_mib=40_960,
    pci_bus_id="00000000:65:00.0",
    vf_profiles=(
        VfProfile(name="A100-20C", memory_mib=20_480, count=2),
        VfProfile(name="A100-5C", memory_mib=5_120, count=8),
    ),
)
NAME = ModeName("passthrough")
WHOLE = GpuRequest(mode=NAME)
A, B, SOUND, BRIDGE, OTHER = "0000:65:00.0", "0000:65:00.2", "0000:65:00.1", "0000:64:00.0", "0000:66:00.0"


def _held(*answers: Slice | Misfit) -> list[HeldSlice]:
    return [HeldSlice(slice=answer) for answer in answers if isinstance(answer, Slice)]


def test_mode_passthrough_is_chosen_by_name_or_virtual_function_and_never_by_amounts() -> None:
    assert mode_for(WHOLE).name == NAME
    assert mode_for(GpuRequest(vf="A100-5C")).name == NAME
    assert mode_for(GpuRequest()).name != NAME
    assert mode_for(GpuRequest(isolation=Isolation.HARDWARE)).name != NAME
    assert MODE.isolation is Isolation.HARDWARE


def test_whole_device_has_one_slice() -> None:
    part = fits(CARD, None, (), WHOLE)
    assert isinstance(part, Slice)
    assert (part.memory_mib, part.core_percent, part.vf) == (40_960, 100, "")
    assert MODE.charge(CARD, part, ComputePolicy.FIXED).core_milli == 1000
    second = fits(CARD, NAME, _held(part), WHOLE)
    assert isinstance(second, Misfit)
    assert second.reason is Reason.NO_CAPACITY
    occupancy = MODE.occupancy(CARD, _held(part))
    assert (occupancy.slots_free, occupancy.memory_free_mib, occupancy.core_percent) == (0, 0, 100)


def test_device_that_is_too_small_or_has_mig_instances_is_refused() -> None:
    small = fits(CARD, None, (), GpuRequest(mode=NAME, memory_mib=50_000))
    assert isinstance(small, Misfit)
    assert small.reason is Reason.TOO_LARGE
    idle = MigInstance(profile="1g.5gb", start=0)
    assert isinstance(fits(replace(CARD, mig_enabled=True, mig_instances=(idle,)), None, (), WHOLE), Slice)
    for stays in (replace(idle, fixed=True), replace(idle, foreign=True)):
        cut = fits(replace(CARD, mig_enabled=True, mig_instances=(idle, stays)), None, (), WHOLE)
        assert isinstance(cut, Misfit)
        assert "MIG" in cut.message


def test_virtual_functions_of_one_profile_fill_a_device_and_exclude_other_profiles() -> None:
    held: list[HeldSlice] = []
    for _ in range(2):
        part = fits(CARD, NAME, held, GpuRequest(vf="a100-20c"))
        assert isinstance(part, Slice)
        assert (part.vf, part.memory_mib, part.core_percent) == ("A100-20C", 20_480, 50)
        held += _held(part)
    for request, word in ((GpuRequest(vf="A100-20C"), "all 2"), (GpuRequest(vf="A100-5C"), "is used as A100-20C")):
        answer = fits(CARD, NAME, held, request)
        assert isinstance(answer, Misfit)
        assert word in answer.message
    assert isinstance(fits(CARD, NAME, held[:1], WHOLE), Misfit)
    assert MODE.occupancy(CARD, held[:1]).slots_free == 1
    assert MODE.occupancy(CARD, []).slots_free == 1


def test_unknown_virtual_function_is_refused_with_the_existing_profiles() -> None:
    answer = fits(CARD, None, (), GpuRequest(vf="A100-10C"))
    assert isinstance(answer, Misfit)
    assert "A100-20C, A100-5C" in answer.message
    with pytest.raises(CalabashError):
        GpuRequest(vf="A100-5C", memory_mib=1024)


@given(st.lists(st.sampled_from(["", "A100-20C", "A100-5C"]), max_size=12))
def test_charges_never_exceed_the_device(asked: list[str]) -> None:
    held: list[HeldSlice] = []
    for name in asked:
        held += _held(fits(CARD, NAME if held else None, held, GpuRequest(mode=NAME, vf=name)))
    charges = [MODE.charge(CARD, h.slice, ComputePolicy.FIXED) for h in held]
    assert sum(c.core_milli for c in charges) <= 1000
    assert sum(c.memory_mib for c in charges) <= CARD.memory_mib
    assert len({h.slice.vf for h in held}) <= 1


# -- IOMMU groups --------------------------------------------------------------------------------------------------------------


def _member(address: str, driver: str = "", **more: bool) -> GroupMember:
    return GroupMember(address=address, driver=driver, **more)


@pytest.mark.parametrize(
    ("others", "word"),
    [
        ([], ""),
        ([_member(BRIDGE, "pcieport", bridge=True)], ""),
        ([_member(BRIDGE, "some-bridge-driver", bridge=True)], ""),
        ([_member(OTHER)], ""),
        ([_member(OTHER, "pci-stub")], ""),
        ([_member(OTHER, "e1000e")], f"{OTHER} (e1000e)"),
        ([_member(OTHER, "vfio-pci", vfio=True)], "assigned to another virtual machine"),
        ([_member(OTHER), _member(SOUND, "snd_hda_intel")], "snd_hda_intel"),
    ],
)
def test_iommu_group_can_be_assigned_if_neither_the_host_nor_another_machine_uses_it(
    others: list[GroupMember], word: str
) -> None:
    why = iommu_group_obstacle([_member(A, "nvidia"), *others], {A})
    assert (why == "") is (word == "")
    assert word in why


def test_other_functions_of_the_card_do_not_prevent_the_assignment() -> None:
    members = [_member(A, "nvidia"), _member(SOUND, "snd_hda_intel"), _member(BRIDGE, "pcieport", bridge=True)]
    assert card_functions(members, A) == (SOUND,)
    assert iommu_group_obstacle(members, {A, *card_functions(members, A)}) == ""
    assert card_functions([*members, _member(OTHER, "nvidia")], A) == (SOUND,)


def test_kubevirt_variables_and_resources_have_the_names_that_kubevirt_uses() -> None:
    assert kubevirt_variable("calabash.dev/gpus") == "PCI_RESOURCE_CALABASH_DEV_GPUS"
    assert kubevirt_variable("nvidia.com/L4-24Q", mediated=True) == "MDEV_PCI_RESOURCE_NVIDIA_COM_L4-24Q"
    assert vendor_resource("NVIDIA L4 (24GB) v1.0") == "nvidia.com/NVIDIA_L4_24GB_V1_0"
