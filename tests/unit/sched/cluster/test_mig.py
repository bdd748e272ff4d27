"""Tests of MIG placement: instances are legal, and placed where the largest profiles stay possible."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.model.mig import (
    MigGeometry,
    MigProfile,
    MigState,
    legal_starts,
    with_instance,
    without_instance,
)
from calabash.model.mig_plan import choose_position
from calabash.sched.cluster.mig_tables import GEOMETRIES, geometry_of

SEVEN = GEOMETRIES["H100"]


@given(st.sampled_from(sorted(GEOMETRIES)), st.lists(st.integers(0, 30), max_size=12))
def test_instances_never_overlap_nor_exceed_the_card(model: str, picks: list[int]) -> None:
    geometry = GEOMETRIES[model]
    state = MigState()
    taken: list[tuple[MigProfile, set[int], int]] = []
    for pick in picks:
        profile = geometry.profiles[pick % len(geometry.profiles)]
        found = choose_position(geometry, profile.name, state)
        if found is None:
            assert not legal_starts(geometry, profile, state)
            continue
        start = found.start
        run = set(range(start, start + profile.slices))
        assert start in profile.starts
        assert max(run) < geometry.slices
        assert all(run.isdisjoint(other) for _, other, _ in taken)
        state = with_instance(state, profile, start)
        taken.append((profile, run, start))
        assert sum(p.compute for p, _, _ in taken) == state.compute <= geometry.compute
        assert sum(p.media for p, _, _ in taken) <= 1
        assert all(sum(p is q for q, _, _ in taken) <= p.limit for p, _, _ in taken)
    for profile, _, start in reversed(taken):
        state = without_instance(state, profile, start)
    assert state == MigState()


def test_small_instance_is_placed_where_large_profiles_stay_possible() -> None:
    found = choose_position(SEVEN, "1g.10gb", MigState())
    assert found is not None
    profile = SEVEN.profile("1g.10gb")
    assert profile is not None
    state = with_instance(MigState(), profile, found.start)
    four = SEVEN.profile("4g.40gb")
    assert four is not None
    assert legal_starts(SEVEN, four, state) == (0,)


def test_seven_small_instances_fill_a_card_and_the_eighth_is_refused() -> None:
    state = MigState()
    profile = SEVEN.profile("1g.10gb")
    assert profile is not None
    for _ in range(7):
        found = choose_position(SEVEN, profile.name, state)
        assert found is not None
        state = with_instance(state, profile, found.start)
    assert choose_position(SEVEN, profile.name, state) is None


def test_two_3g_instances_leave_one_compute_slice_and_no_memory() -> None:
    state = MigState()
    three, one = SEVEN.profile("3g.40gb"), SEVEN.profile("1g.10gb")
    assert three is not None
    assert one is not None
    for start in (0, 4):
        state = with_instance(state, three, start)
    assert state.compute == 6
    assert legal_starts(SEVEN, one, state) == ()


@pytest.mark.parametrize(
    ("model", "memory_mib", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", 81_920, "A100-80"),
        ("NVIDIA A100-PCIE-40GB", 40_960, "A100-40"),
        ("H200", 144_384, "H200"),
        ("NVIDIA GH200 480GB", 97_280, "GH200"),
        ("NVIDIA GB200", 188_733, "GB200"),
        ("NVIDIA A30", 24_576, "A30"),
        ("Tesla T4", 16_384, None),
    ],
)
def test_geometry_is_found_by_the_model_name_of_the_driver(model: str, memory_mib: int, expected: str | None) -> None:
    geometry: MigGeometry | None = geometry_of(model, memory_mib)
    assert geometry is (GEOMETRIES[expected] if expected else None)
