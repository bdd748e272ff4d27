"""Tests of MIG compute instances: several slices in one GPU instance, each with separate compute slices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.model.device import Device, DeviceUuid
from calabash.model.errors import Reason
from calabash.model.mig import (
    MigInstance,
    MigPart,
    MigPlace,
    MigProfile,
    MigState,
    best_compute_slice,
    free_compute_slices,
    legal_starts,
    mig_state,
    with_instance,
    without_instance,
)
from calabash.model.mig_plan import apply_choice, choose_position, plan_positions, possible_places, used_and_idle
from calabash.model.request import GpuRequest, Isolation, ModeName, Slice
from calabash.sched.cluster.mig_tables import GEOMETRIES
from calabash.sharing.mig import MODE, wanted_profile
from calabash.sharing.protocol import HeldSlice, Misfit
from calabash.sharing.registry import fits

GEOMETRY = GEOMETRIES["H100"]
H100 = Device(uuid=DeviceUuid("GPU-h"), index=0, vendor="nvidia", model="H100", memory_mib=81_000, mig=GEOMETRY)
MIG = ModeName("mig")
EMPTY = MigState()


def profile_of(name: str) -> MigProfile:
    profile = GEOMETRY.profile(name)
    assert profile is not None
    return profile


def granted(held: list[HeldSlice], name: str, device: Device = H100, place: MigPlace | None = None) -> Slice:
    part = fits(device, MIG if held else None, held, GpuRequest(mig=name), place=place)
    assert not isinstance(part, Misfit), part
    held.append(HeldSlice(slice=part))
    return part


def refused(held: list[HeldSlice], name: str, device: Device = H100) -> Misfit:
    part = fits(device, MIG if held else None, held, GpuRequest(mig=name))
    assert isinstance(part, Misfit)
    return part


def test_compute_instances_fill_one_gpu_instance_until_its_compute_is_used() -> None:
    held: list[HeldSlice] = []
    parts = [granted(held, "1c.3g.40gb") for _ in range(3)]
    assert len({part.start for part in parts}) == 1
    assert {part.part for part in parts} == {0, 1, 2}
    fourth = granted(held, "1c.3g.40gb")
    assert fourth.start != parts[0].start
    assert isinstance(fits(H100, MIG, held, GpuRequest(mig="1g.10gb")), Misfit)


def test_compute_instance_is_charged_its_compute_and_a_proportional_share_of_the_memory() -> None:
    held: list[HeldSlice] = []
    parts = [granted(held, "1c.3g.40gb") for _ in range(3)]
    whole = profile_of("3g.40gb")
    assert sum(part.memory_mib for part in parts) == whole.memory_mib // 3 * 3
    assert [part.core_percent for part in parts] == [14, 14, 14]
    occupancy = MODE.occupancy(H100, held)
    assert (occupancy.slices, occupancy.memory_mib) == (3, whole.memory_mib // 3 * 3)


def test_compute_instance_with_all_compute_slices_is_the_gpu_instance() -> None:
    assert GEOMETRY.profile("3c.3g.40gb") is GEOMETRY.profile("3g.40gb")
    part = granted([], "3c.3g.40gb")
    assert (part.profile, part.part) == ("3g.40gb", -1)


@pytest.mark.parametrize("name", ["4c.3g.40gb", "5c.7g.80gb", "1c.5g.50gb", "2c.1g.10gb"])
def test_compute_instance_of_impossible_size_is_refused(name: str) -> None:
    assert refused([], name).reason is Reason.SELECTOR_MISMATCH


def test_amounts_never_get_a_compute_instance_and_hardware_isolation_refuses_it() -> None:
    for percent in range(1, 101):
        profile = wanted_profile(GEOMETRY, GpuRequest(mode=MIG, core_percent=percent))
        assert profile is not None
        assert not profile.of
    asked = GpuRequest(mig="1c.3g.40gb", isolation=Isolation.HARDWARE)
    answer = fits(H100, None, (), asked)
    assert isinstance(answer, Misfit)
    assert "shares the memory" in answer.message


def test_divided_gpu_instance_is_not_allocated_as_a_whole_and_a_whole_one_is_not_divided() -> None:
    held: list[HeldSlice] = []
    part = granted(held, "1c.3g.40gb")
    whole = granted(held, "3g.40gb")
    assert {part.start, whole.start} == {0, 4}
    assert granted(held, "2c.3g.40gb").start == part.start
    assert refused(held, "1c.3g.40gb").reason is Reason.NO_CAPACITY


def test_compute_instance_keeps_the_largest_possible_and_uses_the_fullest_gpu_instance() -> None:
    held: list[HeldSlice] = []
    assert granted(held, "1c.3g.40gb").part == 2
    assert granted(held, "2c.3g.40gb").part == 0
    first = granted(held, "2c.3g.40gb")
    assert granted(held, "1c.3g.40gb").start == first.start


def test_given_position_is_used_to_the_compute_slice() -> None:
    held: list[HeldSlice] = []
    assert granted(held, "1c.3g.40gb", place=MigPlace(0, 1)).place == (0, 1)
    assert granted(held, "1c.3g.40gb", place=MigPlace(0, 0)).place == (0, 0)
    assert granted(held, "1c.3g.40gb", place=MigPlace(4, 2)).place == (4, 2)
    again = fits(H100, MIG, held, GpuRequest(mig="1c.3g.40gb"), place=MigPlace(0, 1))
    assert isinstance(again, Misfit)
    across = fits(H100, MIG, held, GpuRequest(mig="2c.3g.40gb"), place=MigPlace(4, 1))
    assert isinstance(across, Misfit)


def test_idle_gpu_instance_is_divided_and_small_idle_ones_are_destroyed_for_compute_instances() -> None:
    idle = [MigInstance(profile="3g.40gb", start=0)]
    choice = choose_position(GEOMETRY, "1c.3g.40gb", mig_state(GEOMETRY, [("3g.40gb", 4)]), idle)
    assert choice is not None
    assert (choice.start, choice.reused, choice.shared, choice.destroyed) == (0, True, False, ())
    small = [MigInstance(profile="1g.10gb", start=s) for s in (1, 2)]
    choice = choose_position(GEOMETRY, "1c.3g.40gb", mig_state(GEOMETRY, [("3g.40gb", 4)]), small)
    assert choice is not None
    assert [i.start for i in choice.destroyed] == [1, 2]


def test_compute_instances_created_by_others_are_reused_and_never_changed() -> None:
    parts = (MigPart(start=0, compute=2, kept=True), MigPart(start=2, compute=1, kept=True))
    cut = replace(H100, mig_instances=(MigInstance(profile="3g.40gb", start=4, fixed=True, parts=parts),))
    held: list[HeldSlice] = []
    granted(held, "4g.40gb", cut)
    assert refused(held, "3g.40gb", cut).reason is Reason.NO_CAPACITY
    assert granted(held, "1c.3g.40gb", cut).place == (4, 2)
    assert refused(held, "1c.3g.40gb", cut).reason is Reason.NO_CAPACITY
    assert granted(held, "2c.3g.40gb", cut).place == (4, 0)


def test_gpu_instance_with_an_unmanaged_process_accepts_no_more_compute_instances() -> None:
    held: list[HeldSlice] = []
    part = granted(held, "1c.3g.40gb")
    there = replace(H100, mig_instances=(MigInstance(profile="3g.40gb", start=part.start, foreign=True),))
    assert granted(held, "1c.3g.40gb", there).start != part.start


def test_waiting_compute_instances_are_planned_as_the_gpu_instances_that_they_need() -> None:
    answers = plan_positions(GEOMETRY, EMPTY, [], ["1c.3g.40gb"] * 3 + ["4g.40gb", "1c.3g.40gb"])
    assert [choice.start if choice else None for choice in answers] == [4, 4, 4, 0, None]


NAMES = [p.name for p in GEOMETRY.profiles] + [
    f"{c}c.{p.name}" for p in GEOMETRY.profiles for c in (1, 2, 3, 4) if c < p.compute
]


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.booleans(), st.integers(0, 99)), max_size=30))
def test_no_compute_slice_is_used_twice_and_vacated_reverses_occupied(
    steps: list[tuple[str, bool, int]],
) -> None:
    state, held = EMPTY, list[tuple[str, int, int]]()
    for name, leaves, which in steps:
        if leaves and held:
            gone = held.pop(which % len(held))
            state = without_instance(state, profile_of(gone[0]), *gone[1:])
            assert state == mig_state(GEOMETRY, held)
            continue
        profile = profile_of(name)
        places = possible_places(GEOMETRY, profile, state, ())
        choice = choose_position(GEOMETRY, name, state)
        assert (choice is None) == (not places)
        if choice is None:
            continue
        assert choice.place in places
        state = apply_choice(GEOMETRY, state, (), choice)[0]
        held.append((choice.profile, *choice.place))
    memory = sum(p.slices for p, start in {(profile_of(profile_of(n).instance), start) for n, start, _ in held})
    assert state.mask.bit_count() == memory
    for shared in state.shared:
        inside = [profile_of(n).compute for n, start, part in held if start == shared.start and part >= 0]
        assert sum(inside) == shared.mask.bit_count()
    for gone in reversed(held):
        state = without_instance(state, profile_of(gone[0]), *gone[1:])
    assert state == EMPTY


def test_best_part_is_one_of_the_open_parts() -> None:
    for name in NAMES:
        profile = profile_of(name)
        for mask in range(1 << profile.instance_compute):
            found = free_compute_slices(profile, mask)
            assert best_compute_slice(profile, mask) in (found or (-1,))


def test_existing_gpu_instance_counts_once() -> None:
    used = mig_state(GEOMETRY, [("1c.3g.40gb", 4, 2), ("1c.3g.40gb", 4, 1)])
    state, idle = used_and_idle(GEOMETRY, used, [MigInstance(profile="3g.40gb", start=4)])
    assert (state, idle) == (used, ())
    assert legal_starts(GEOMETRY, profile_of("4g.40gb"), state) == (0,)
    assert with_instance(used, profile_of("4g.40gb"), 0).compute == 7
