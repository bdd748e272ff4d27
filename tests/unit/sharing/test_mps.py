"""Tests of sharing mode mps: shares are never overcommitted, and unsupported requests are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.model.device import Device, DeviceUuid
from calabash.model.errors import Reason
from calabash.model.mig import MigGeometry, MigInstance, MigProfile
from calabash.model.request import ComputePolicy, GpuRequest, ModeName, Slice
from calabash.sharing.mps import CLIENTS_MAX, MODE, SLICE_RESERVE_MIB, is_service_name, percent_of_device, service_name
from calabash.sharing.protocol import HeldSlice, Misfit
from calabash.sharing.registry import fits, mode_for

CARD = Device(uuid=DeviceUuid("GPU-1"), index=0, vendor="acme", model="A100", memory_mib=40_960)


def ask(cores: int, memory_mib: int | None = None, **more: object) -> GpuRequest:
    return GpuRequest(mode=ModeName("mps"), core_percent=cores, memory_mib=memory_mib, **more)  # type: ignore[arg-type]


def granted(held: list[HeldSlice], request: GpuRequest) -> Slice | Misfit:
    return fits(CARD, ModeName("mps") if held else None, held, request)


@given(st.lists(st.tuples(st.integers(1, 100), st.none() | st.integers(1, 50_000)), max_size=60))
def test_compute_and_memory_of_a_device_are_never_overcommitted(asks: list[tuple[int, int | None]]) -> None:
    held: list[HeldSlice] = []
    for cores, memory_mib in asks:
        answer = granted(held, ask(cores, memory_mib))
        if isinstance(answer, Slice):
            held.append(HeldSlice(slice=answer))
    charges = [MODE.charge(CARD, h.slice, h.policy) for h in held]
    assert sum(h.slice.core_percent for h in held) <= 100
    assert sum(h.slice.memory_mib + SLICE_RESERVE_MIB for h in held) <= CARD.memory_mib
    assert sum(c.core_milli for c in charges) <= 1000
    assert sum(c.memory_mib for c in charges) <= CARD.memory_mib
    assert len(held) <= CLIENTS_MAX


def test_equal_fractions_fit_as_often_as_expected_in_mode_mps() -> None:
    held: list[HeldSlice] = []
    for _ in range(4):
        answer = granted(held, ask(25))
        assert isinstance(answer, Slice)
        held.append(HeldSlice(slice=answer))


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (ask(10, count=2), Reason.MODE_CONFLICT),
        (ask(10, policy=ComputePolicy.BURST), Reason.MODE_CONFLICT),
        (ask(10, policy=ComputePolicy.BEST_EFFORT), Reason.MODE_CONFLICT),
        (ask(10, 41_000), Reason.TOO_LARGE),
        (ask(51, 1_000), Reason.NO_CORES),
        (ask(10, 30_000), Reason.NO_MEMORY),
    ],
    ids=["several", "burst", "best-effort", "large", "cores", "memory"],
)
def test_request_that_does_not_fit_is_refused_with_a_reason(request_: GpuRequest, reason: Reason) -> None:
    first = granted([], ask(50, 20_000))
    assert isinstance(first, Slice)
    answer = granted([HeldSlice(slice=first)], request_)
    assert isinstance(answer, Misfit)
    assert answer.reason is reason


def test_mode_mps_is_chosen_by_name_only() -> None:
    for cores in (10, 100):
        assert mode_for(GpuRequest(core_percent=cores)).name != "mps"


# -- on a device with a MIG layout -----------------------------------------------------------------------------------

GEOMETRY = MigGeometry(
    slices=8,
    compute=7,
    profiles=(
        MigProfile(id=1, name="3g.20gb", compute=3, slices=4, starts=(0, 4), limit=2, memory_mib=20_096, media=False),
        MigProfile(id=2, name="4g.20gb", compute=4, slices=4, starts=(0,), limit=1, memory_mib=20_096, media=False),
    ),
)
FIRST = MigInstance(profile="4g.20gb", start=0, uuid="MIG-1", fixed=True)
SECOND = MigInstance(profile="3g.20gb", start=4, uuid="MIG-2", fixed=True)
CUT = replace(CARD, mig=GEOMETRY, mig_enabled=True, mig_instances=(FIRST, SECOND), pinned="mps")


def granted_of(device: Device, held: list[HeldSlice], request: GpuRequest) -> Slice | Misfit:
    return fits(device, ModeName("mps") if held else None, held, request)


def places(*asks: tuple[int, int]) -> list[tuple[str, int]]:
    held: list[HeldSlice] = []
    for cores, memory_mib in asks:
        answer = granted_of(CUT, held, ask(cores, memory_mib))
        assert isinstance(answer, Slice), answer
        held.append(HeldSlice(slice=answer))
    return [(h.slice.profile, h.slice.start) for h in held]


def test_slice_is_placed_in_the_fullest_gpu_instance_with_room() -> None:
    three, four = SECOND.place, FIRST.place
    assert places((10, 1000), (10, 1000), (43, 1000), (20, 1000)) == [three, three, four, three]
    assert places((50, 1000), (10, 18_000), (5, 4000)) == [four, three, four]


@given(st.lists(st.tuples(st.integers(1, 60), st.none() | st.integers(1, 25_000)), max_size=40))
def test_gpu_instance_of_a_layout_is_never_overcommitted(asks: list[tuple[int, int | None]]) -> None:
    held: list[HeldSlice] = []
    for cores, memory_mib in asks:
        answer = granted_of(CUT, held, ask(cores, memory_mib))
        if isinstance(answer, Slice):
            assert granted_of(CUT, held, ask(cores, memory_mib)) == answer
            assert fits(CUT, ModeName("mps"), held, ask(cores, memory_mib), place=answer.place) == answer
            held.append(HeldSlice(slice=answer))
    for instance in CUT.mig_instances:
        inside = [h.slice for h in held if (h.slice.profile, h.slice.start) == instance.place]
        assert sum(s.core_percent for s in inside) <= percent_of_device(GEOMETRY, instance.profile)
        assert sum(s.memory_mib + SLICE_RESERVE_MIB for s in inside) <= 20_096
    assert sum(MODE.charge(CUT, h.slice, h.policy).core_milli for h in held) <= 1000


@pytest.mark.parametrize(
    ("request_", "reason", "words"),
    [
        (ask(60, 1000), Reason.NO_CORES, "its 4g.20gb at 0 has 58%"),
        (ask(10, 20_090), Reason.NO_MEMORY, "asked 10% and"),
    ],
    ids=["cores", "memory"],
)
def test_request_too_large_for_every_gpu_instance_is_refused_with_their_free_amounts(
    request_: GpuRequest, reason: Reason, words: str
) -> None:
    answer = granted_of(CUT, [], request_)
    assert isinstance(answer, Misfit)
    assert answer.reason is reason
    assert words in answer.message


@pytest.mark.parametrize(
    "instance",
    [replace(SECOND, foreign=True), replace(SECOND, fixed=False)],
    ids=["strangers", "of no layout"],
)
def test_gpu_instance_with_unmanaged_processes_or_outside_the_layout_is_not_used(instance: MigInstance) -> None:
    answer = granted_of(replace(CUT, mig_instances=(FIRST, instance)), [], ask(10, 1000))
    assert isinstance(answer, Slice)
    assert answer.profile == FIRST.profile


def test_mps_service_on_a_gpu_instance_is_not_an_unmanaged_process() -> None:
    first = granted_of(CUT, [], ask(10, 1000))
    assert isinstance(first, Slice)
    served = replace(CUT, mig_instances=(FIRST, replace(SECOND, foreign=True)))
    second = granted_of(served, [HeldSlice(slice=first)], ask(10, 1000))
    assert isinstance(second, Slice)
    assert second.start == first.start


@pytest.mark.parametrize("pinned", ["", "mig", "vgpu"])
def test_layout_is_used_by_mode_mps_only_if_the_device_is_pinned_to_it(pinned: str) -> None:
    answer = granted_of(replace(CUT, pinned=pinned), [], ask(10, 1000))
    assert isinstance(answer, Misfit)
    assert answer.reason is Reason.MODE_CONFLICT
    whole = granted_of(replace(CUT, mig_instances=(), mig_enabled=False), [], ask(10, 1000))
    assert isinstance(whole, Slice)
    assert whole.profile == ""


def test_mps_services_of_a_device_have_different_names() -> None:
    assert (service_name("", -1), service_name("3g.20gb", 4)) == ("mps", "mps 3g.20gb at 4")
    assert all(is_service_name(name) for name in ("mps", "mps 3g.20gb at 4"))
    assert not any(is_service_name(name) for name in ("MIG-1", "mpsx", ""))
