"""Tests of sharing mode brokered: it charges slices like mode vgpu and shares devices with that mode."""

from __future__ import annotations

from dataclasses import replace

import pytest

from calabash.model.device import Device, DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import ComputePolicy, GpuRequest, Isolation, ModeName, Slice
from calabash.sched.cluster.mig_tables import GEOMETRIES
from calabash.sharing import brokered, vgpu
from calabash.sharing.protocol import HeldSlice, Misfit, device_mode
from calabash.sharing.registry import SHARING_MODES, fits, mode_for, mode_of_device, resolve

CARD = Device(uuid=DeviceUuid("GPU-1"), index=0, vendor="nvidia", model="A100", memory_mib=40_960)
ASKED = GpuRequest(memory_mib=8192, core_percent=50, isolation=Isolation.BROKERED)


def test_isolation_level_brokered_chooses_mode_brokered_and_other_levels_do_not() -> None:
    assert mode_for(ASKED).name == "brokered"
    assert mode_for(GpuRequest(isolation=Isolation.BROKERED)).name == "brokered"
    assert mode_for(GpuRequest(memory_mib=8192)).name == "vgpu"
    assert mode_for(GpuRequest(memory_mib=8192, isolation=Isolation.HARDWARE)).name == "mig"


def test_device_accepts_vgpu_and_brokered_slices_together() -> None:
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
def test_device_pinned_to_vgpu_or_brokered_accepts_brokered_slices(pinned: str) -> None:
    card = Device(uuid=CARD.uuid, index=0, vendor="nvidia", model="A100", memory_mib=40_960, pinned=pinned)
    assert resolve(ASKED).on(card).name == "brokered"
    assert isinstance(fits(card, None, [], ASKED), Slice)
    plain = fits(card, None, [], GpuRequest(memory_mib=8192))
    assert isinstance(plain, Slice) == (pinned == "vgpu")


@pytest.mark.parametrize("policy", list(ComputePolicy))
def test_brokered_slice_is_charged_like_a_vgpu_slice(policy: ComputePolicy) -> None:
    part = Slice(device=CARD.uuid, memory_mib=8192, core_percent=50)
    assert brokered.MODE.charge(CARD, part, policy) == vgpu.MODE.charge(CARD, part, policy)
    held = [HeldSlice(slice=part, policy=policy)]
    assert brokered.MODE.occupancy(CARD, held) == vgpu.MODE.occupancy(CARD, held)


def test_attribute_beside_names_an_existing_mode() -> None:
    assert {device_mode(mode) for mode in SHARING_MODES.values()} <= SHARING_MODES.keys()


def test_brokered_mode_has_no_container_edits_and_refuses_spill() -> None:
    part = Slice(device=CARD.uuid, memory_mib=8192, core_percent=50)
    assert brokered.MODE.container_edits([part], library="/lib.so", slot="/slot").environment == ()
    with pytest.raises(CalabashError, match="isolates at level cooperative"):
        mode_for(GpuRequest(memory_mib=8192, spill_mib=1024, isolation=Isolation.BROKERED))


def test_standing_request_gets_a_mode_that_needs_no_program() -> None:
    kept = replace(CARD, pinned="mig", mig=GEOMETRIES["H100"])
    asked = GpuRequest(memory_mib=1500, core_percent=10, isolation=Isolation.BROKERED)
    assert resolve(asked).on(kept).name == "mig"
    assert resolve(replace(asked, standing=True)).on(kept).name == "brokered"
    assert mode_for(replace(asked, standing=True, isolation=Isolation.COOPERATIVE)).name == "vgpu", (
        "refused when granted"
    )
