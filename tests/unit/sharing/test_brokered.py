"""Brokered slices are software slices that somebody else uses: they charge alike, and share cards with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from calabash.model.device import Device, DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import ComputePolicy, GpuRequest, Isolation, ModeName, Slice
from calabash.sched.cluster.mig_tables import GEOMETRIES
from calabash.sharing import brokered, vgpu
from calabash.sharing.protocol import HeldSlice, Misfit, device_mode
from calabash.sharing.registry import SHARING_MODES, fits, mode_for, mode_of_device, mode_on

CARD = Device(uuid=DeviceUuid("GPU-1"), index=0, vendor="nvidia", model="A100", memory_mib=40_960)
ASKED = GpuRequest(memory_mib=8192, core_percent=50, isolation=Isolation.BROKERED)


def test_who_asks_for_just_that_level_gets_a_worker_and_who_asks_for_less_or_more_does_not() -> None:
    assert mode_for(ASKED).name == "brokered"
    assert mode_for(GpuRequest(isolation=Isolation.BROKERED)).name == "brokered"
    assert mode_for(GpuRequest(memory_mib=8192)).name == "vgpu"
    assert mode_for(GpuRequest(memory_mib=8192, isolation=Isolation.HARDWARE)).name == "mig"


def test_a_card_of_software_slices_takes_a_brokered_one_and_the_other_way_round() -> None:
    other = Slice(device=CARD.uuid, memory_mib=8192, core_percent=50)
    assert mode_of_device(ModeName("brokered")) == "vgpu"
    assert isinstance(fits(CARD, ModeName("vgpu"), [HeldSlice(slice=other)], ASKED), Slice)
    full = fits(CARD, ModeName("vgpu"), [HeldSlice(slice=other)] * 2, ASKED)
    assert isinstance(full, Misfit)
    assert full.reason is Reason.NO_CORES
    busy = fits(CARD, ModeName("timeslice"), [HeldSlice(slice=other)], ASKED)
    assert isinstance(busy, Misfit)
    assert busy.reason is Reason.MODE_CONFLICT


@pytest.mark.parametrize("pinned", ["vgpu", "brokered"])
def test_a_card_that_is_kept_for_software_slices_serves_brokered_ones(pinned: str) -> None:
    card = Device(uuid=CARD.uuid, index=0, vendor="nvidia", model="A100", memory_mib=40_960, pinned=pinned)
    assert mode_on(card, ASKED).name == "brokered"
    assert isinstance(fits(card, None, [], ASKED), Slice)
    plain = fits(card, None, [], GpuRequest(memory_mib=8192))
    assert isinstance(plain, Slice) == (pinned == "vgpu")


@pytest.mark.parametrize("policy", list(ComputePolicy))
def test_it_charges_what_a_software_slice_does(policy: ComputePolicy) -> None:
    part = Slice(device=CARD.uuid, memory_mib=8192, core_percent=50)
    assert brokered.MODE.charge(CARD, part, policy) == vgpu.MODE.charge(CARD, part, policy)
    held = [HeldSlice(slice=part, policy=policy)]
    assert brokered.MODE.division(CARD, held) == vgpu.MODE.division(CARD, held)


def test_modes_that_share_devices_with_another_name_one_that_there_is() -> None:
    assert {device_mode(mode) for mode in SHARING_MODES.values()} <= SHARING_MODES.keys()


def test_a_program_with_a_worker_is_told_nothing_of_its_slice_and_pages_nothing() -> None:
    part = Slice(device=CARD.uuid, memory_mib=8192, core_percent=50)
    assert brokered.MODE.container_edits([part], library="/lib.so", slot="/slot").environment == ()
    with pytest.raises(CalabashError, match="isolates at level cooperative"):
        mode_for(GpuRequest(memory_mib=8192, spill_mib=1024, isolation=Isolation.BROKERED))


def test_what_is_to_stand_without_a_program_is_not_answered_by_a_mode_that_needs_one() -> None:
    kept = replace(CARD, pinned="mig", mig=GEOMETRIES["H100"])
    asked = GpuRequest(memory_mib=1500, core_percent=10, isolation=Isolation.BROKERED)
    assert mode_on(kept, asked).name == "mig"
    assert mode_on(kept, replace(asked, standing=True)).name == "brokered"
    assert mode_for(replace(asked, standing=True, isolation=Isolation.COOPERATIVE)).name == "vgpu", (
        "refused when granted"
    )
