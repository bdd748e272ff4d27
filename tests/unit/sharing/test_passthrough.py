"""Which cards and parts of cards virtual machines get, and which IOMMU groups can be handed out at all."""

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
    companions,
    kubevirt_variable,
    not_viable,
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


def test_it_is_chosen_by_name_or_by_a_part_and_never_by_amounts() -> None:
    assert mode_for(WHOLE).name == NAME
    assert mode_for(GpuRequest(vf="A100-5C")).name == NAME
    assert mode_for(GpuRequest()).name != NAME
    assert mode_for(GpuRequest(isolation=Isolation.HARDWARE)).name != NAME
    assert MODE.isolation is Isolation.HARDWARE


def test_a_whole_card_is_one_tenants() -> None:
    part = fits(CARD, None, (), WHOLE)
    assert isinstance(part, Slice)
    assert (part.memory_mib, part.core_percent, part.vf) == (40_960, 100, "")
    assert MODE.charge(CARD, part, ComputePolicy.FIXED).core_milli == 1000
    second = fits(CARD, NAME, _held(part), WHOLE)
    assert isinstance(second, Misfit)
    assert second.reason is Reason.NO_CAPACITY
    division = MODE.division(CARD, _held(part))
    assert (division.slots_free, division.memory_free_mib, division.core_percent) == (0, 0, 100)


def test_a_card_too_small_or_cut_by_mig_is_no_answer() -> None:
    small = fits(CARD, None, (), GpuRequest(mode=NAME, memory_mib=50_000))
    assert isinstance(small, Misfit)
    assert small.reason is Reason.TOO_LARGE
    idle = MigInstance(profile="1g.5gb", start=0)
    assert isinstance(fits(replace(CARD, mig_enabled=True, mig_instances=(idle,)), None, (), WHOLE), Slice)
    for stays in (replace(idle, fixed=True), replace(idle, foreign=True)):
        cut = fits(replace(CARD, mig_enabled=True, mig_instances=(idle, stays)), None, (), WHOLE)
        assert isinstance(cut, Misfit)
        assert "MIG" in cut.message


def test_parts_of_one_size_fill_a_card_and_no_other_size_goes_beside_them() -> None:
    held: list[HeldSlice] = []
    for _ in range(2):
        part = fits(CARD, NAME, held, GpuRequest(vf="a100-20c"))
        assert isinstance(part, Slice)
        assert (part.vf, part.memory_mib, part.core_percent) == ("A100-20C", 20_480, 50)
        held += _held(part)
    for request, word in ((GpuRequest(vf="A100-20C"), "all 2"), (GpuRequest(vf="A100-5C"), "given out as A100-20C")):
        answer = fits(CARD, NAME, held, request)
        assert isinstance(answer, Misfit)
        assert word in answer.message
    assert isinstance(fits(CARD, NAME, held[:1], WHOLE), Misfit)
    assert MODE.division(CARD, held[:1]).slots_free == 1
    assert MODE.division(CARD, []).slots_free == 1


def test_a_part_that_the_card_does_not_make_is_answered_with_those_it_makes() -> None:
    answer = fits(CARD, None, (), GpuRequest(vf="A100-10C"))
    assert isinstance(answer, Misfit)
    assert "A100-20C, A100-5C" in answer.message
    with pytest.raises(CalabashError):
        GpuRequest(vf="A100-5C", memory_mib=1024)


@given(st.lists(st.sampled_from(["", "A100-20C", "A100-5C"]), max_size=12))
def test_what_is_charged_is_never_more_than_the_card(asked: list[str]) -> None:
    held: list[HeldSlice] = []
    for name in asked:
        held += _held(fits(CARD, NAME if held else None, held, GpuRequest(mode=NAME, vf=name)))
    charges = [MODE.charge(CARD, h.slice, ComputePolicy.FIXED) for h in held]
    assert sum(c.core_milli for c in charges) <= 1000
    assert sum(c.memory_mib for c in charges) <= CARD.memory_mib
    assert len({h.slice.vf for h in held}) <= 1


# -- groups --------------------------------------------------------------------------------------------------------------


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
        ([_member(OTHER, "vfio-pci", vfio=True)], "given out already"),
        ([_member(OTHER), _member(SOUND, "snd_hda_intel")], "snd_hda_intel"),
    ],
)
def test_a_group_is_viable_when_nothing_in_it_is_the_hosts_or_anothers(others: list[GroupMember], word: str) -> None:
    why = not_viable([_member(A, "nvidia"), *others], {A})
    assert (why == "") is (word == "")
    assert word in why


def test_what_goes_along_does_not_stand_in_the_way() -> None:
    members = [_member(A, "nvidia"), _member(SOUND, "snd_hda_intel"), _member(BRIDGE, "pcieport", bridge=True)]
    assert companions(members, A) == (SOUND,)
    assert not_viable(members, {A, *companions(members, A)}) == ""
    assert companions([*members, _member(OTHER, "nvidia")], A) == (SOUND,)


def test_variables_are_named_as_kubevirt_names_them() -> None:
    assert kubevirt_variable("calabash.dev/gpus") == "PCI_RESOURCE_CALABASH_DEV_GPUS"
    assert kubevirt_variable("nvidia.com/L4-24Q", mediated=True) == "MDEV_PCI_RESOURCE_NVIDIA_COM_L4-24Q"
    assert vendor_resource("NVIDIA L4 (24GB) v1.0") == "nvidia.com/NVIDIA_L4_24GB_V1_0"
