"""Tests of sharing mode mig: profiles for amounts, capacity of a device, and choice of the mode by isolation level."""

from __future__ import annotations

from dataclasses import replace

import pytest

from calabash.model.device import Device, DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.mig import MigInstance, MigPlace
from calabash.model.request import GpuRequest, Isolation, ModeName, Slice
from calabash.sched.cluster.mig_tables import GEOMETRIES
from calabash.sharing.mig import MODE
from calabash.sharing.protocol import HeldSlice, Misfit
from calabash.sharing.registry import fits, mode_for, resolve

H100 = Device(
    uuid=DeviceUuid("GPU-h"), index=0, vendor="nvidia", model="H100", memory_mib=81_000, mig=GEOMETRIES["H100"]
)
T4 = Device(uuid=DeviceUuid("GPU-t"), index=1, vendor="nvidia", model="T4", memory_mib=15_000)
MIG = ModeName("mig")


def granted(device: Device, held: list[HeldSlice], request: GpuRequest, start: int = -1) -> Slice:
    part = fits(device, MIG if held else None, held, request, place=MigPlace(start) if start >= 0 else None)
    assert not isinstance(part, Misfit), part
    held.append(HeldSlice(slice=part))
    return part


@pytest.mark.parametrize(
    ("request_", "profile"),
    [
        (GpuRequest(mig="1g.10gb+me"), "1g.10gb+me"),
        (GpuRequest(mode=MIG, memory_mib=9000), "1g.10gb"),
        (GpuRequest(mode=MIG, memory_mib=10 * 1024), "1g.20gb"),
        (GpuRequest(mode=MIG, memory_mib=9000, core_percent=15), "1g.10gb"),
        (GpuRequest(mode=MIG, memory_mib=9000, core_percent=16), "2g.20gb"),
        (GpuRequest(mode=MIG, core_percent=43), "3g.40gb"),
        (GpuRequest(mode=MIG, core_percent=57), "4g.40gb"),
        (GpuRequest(mode=MIG, memory_milli=500), "3g.40gb"),
        (GpuRequest(mode=MIG), "7g.80gb"),
        (GpuRequest(isolation=Isolation.HARDWARE, memory_mib=16 * 1024), "1g.20gb"),
    ],
)
def test_amounts_get_the_smallest_profile_that_has_them(request_: GpuRequest, profile: str) -> None:
    part = granted(H100, [], request_)
    assert part.profile == profile
    assert part.memory_mib >= (request_.memory_mib or 0)
    assert part.start >= 0


def test_instances_fill_a_device_until_a_profile_is_refused() -> None:
    held: list[HeldSlice] = []
    for profile in ("3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"):
        granted(H100, held, GpuRequest(mig=profile))
    assert len({h.slice.start for h in held}) == 4
    refused = fits(H100, MIG, held, GpuRequest(mig="2g.20gb"))
    assert isinstance(refused, Misfit)
    assert refused.reason is Reason.NO_CAPACITY
    assert "3g.40gb at" in refused.message
    occupancy = MODE.occupancy(H100, held)
    assert (occupancy.slices, occupancy.slots_free) == (4, 0)


def test_given_start_is_used_or_refused() -> None:
    held: list[HeldSlice] = []
    assert granted(H100, held, GpuRequest(mig="1g.10gb"), start=2).start == 2
    refused = fits(H100, MIG, held, GpuRequest(mig="2g.20gb"), place=MigPlace(2))
    assert isinstance(refused, Misfit)
    assert granted(H100, held, GpuRequest(mig="2g.20gb"), start=4).start == 4


def test_hardware_isolation_gets_a_partition_if_the_device_supports_mig_and_else_the_whole_device() -> None:
    request = GpuRequest(isolation=Isolation.HARDWARE, memory_mib=8 * 1024)
    assert resolve(request).on(H100).name == "mig"
    assert resolve(request).on(T4).name == "exclusive"
    whole = fits(T4, None, (), request)
    assert not isinstance(whole, Misfit)
    assert whole.memory_mib == T4.memory_mib
    assert mode_for(GpuRequest(isolation=Isolation.HARDWARE)).name == "exclusive"


def test_device_without_mig_and_unknown_profile_give_different_messages() -> None:
    nowhere = fits(T4, None, (), GpuRequest(mig="1g.10gb"))
    unknown = fits(H100, None, (), GpuRequest(mig="1g.5gb"))
    assert isinstance(nowhere, Misfit)
    assert "does not support MIG" in nowhere.message
    assert isinstance(unknown, Misfit)
    assert "1g.10gb" in unknown.message


def test_pinned_device_refuses_other_modes() -> None:
    kept = replace(H100, pinned="mig")
    refused = fits(kept, None, (), GpuRequest(memory_mib=1000))
    assert isinstance(refused, Misfit)
    assert "kept in mode mig" in refused.message
    assert not isinstance(fits(kept, None, (), GpuRequest(mig="1g.10gb")), Misfit)
    whole = replace(H100, pinned="exclusive")
    asked = GpuRequest(isolation=Isolation.HARDWARE, memory_mib=1000)
    assert resolve(asked).on(whole).name == "exclusive"


def test_instance_with_unmanaged_processes_is_not_allocated_and_fixed_instance_is_reused() -> None:
    cut = replace(
        H100,
        mig_instances=(
            MigInstance(profile="3g.40gb", start=0, foreign=True),
            MigInstance(profile="3g.40gb", start=4, fixed=True),
        ),
    )
    assert isinstance(fits(cut, None, (), GpuRequest(mig="1g.10gb")), Misfit)
    assert granted(cut, [], GpuRequest(mig="3g.40gb")).start == 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"mig": "1g"}, {"mig": "0g.10gb"}, {"mig": "1g.10gb; rm"}, {"mig": "1g.10gb", "memory_mib": 5},
        {"mig": "1g.10gb", "core_percent": 5}, {"mig": "1g.10gb", "mode": ModeName("vgpu")}, {"mig": "9" * 4000},
    ],
)  # fmt: skip
def test_invalid_profile_or_profile_with_amounts_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(CalabashError):
        GpuRequest(**wrong)  # type: ignore[arg-type]


def test_profile_implies_mode_mig() -> None:
    assert GpuRequest(mig="1g.10gb").mode == "mig"
    assert mode_for(GpuRequest(mig="1g.10gb")).name == "mig"
