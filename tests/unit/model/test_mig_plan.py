"""Tests of the placement of MIG instances: large profiles stay possible, few idle instances are destroyed, no used one."""

from __future__ import annotations

import random

import pytest
from bench._mig_demand import Quality, follow
from hypothesis import given
from hypothesis import strategies as st

from calabash.model.mig import MigInstance, MigState, legal_starts, memory_mask, mig_state, with_instance
from calabash.model.mig_plan import apply_choice, choose_position, instances_to_destroy, plan_positions, used_and_idle
from calabash.sched.cluster.mig_tables import GEOMETRIES

H100 = GEOMETRIES["H100"]
EMPTY = MigState()


def stands(profile: str, start: int, *, fixed: bool = False) -> MigInstance:
    return MigInstance(profile=profile, start=start, fixed=fixed)


def test_small_instance_keeps_the_largest_profile_possible() -> None:
    choice = choose_position(H100, "1g.10gb", EMPTY)
    assert choice is not None
    assert choice.start == 6
    four, small = H100.profile("4g.40gb"), H100.profile("1g.10gb")
    assert four is not None
    assert small is not None
    assert legal_starts(H100, four, with_instance(EMPTY, small, choice.start)) == (0,)


def test_idle_instance_is_reused_if_no_larger_profile_is_lost() -> None:
    choice = choose_position(H100, "3g.40gb", EMPTY, [stands("3g.40gb", 4)])
    assert choice is not None
    assert (choice.start, choice.reused, choice.destroyed) == (4, True, ())


def test_free_start_is_preferred_to_destroying_an_idle_instance() -> None:
    idle = [stands("1g.10gb", start) for start in (4, 5, 6)]
    choice = choose_position(H100, "2g.20gb", EMPTY, idle)
    assert choice is not None
    assert choice.start in (0, 2)
    assert choice.destroyed == ()


def test_fewest_idle_instances_are_destroyed() -> None:
    used = mig_state(H100, [("4g.40gb", 0)])
    idle = [stands("1g.10gb", 4), stands("1g.10gb", 5), stands("1g.10gb", 6)]
    choice = choose_position(H100, "1g.20gb", used, idle)
    assert choice is not None
    assert choice.destroyed == (stands("1g.10gb", 6),)


def test_fixed_instance_is_reused_and_never_destroyed() -> None:
    idle = [stands("7g.80gb", 0, fixed=True)]
    assert choose_position(H100, "1g.10gb", EMPTY, idle) is None
    choice = choose_position(H100, "7g.80gb", EMPTY, idle)
    assert choice is not None
    assert choice.reused


def test_instance_with_unmanaged_processes_counts_as_used() -> None:
    foreign = MigInstance(profile="3g.40gb", start=0, foreign=True)
    held = mig_state(H100, [("1g.10gb", 5)])
    state, idle = used_and_idle(H100, held, [foreign, stands("1g.10gb", 6), stands("1g.10gb", 5)])
    assert idle == (stands("1g.10gb", 6),)
    assert state == mig_state(H100, [("3g.40gb", 0), ("1g.10gb", 5)])


def test_start_needed_by_a_waiting_request_stays_free() -> None:
    """A 1g instance gets the last start, unless a waiting 1g.20gb fits at that start only."""
    used = mig_state(H100, [("4g.40gb", 0), ("1g.10gb", 4)])
    alone = choose_position(H100, "1g.10gb", used)
    before = choose_position(H100, "1g.10gb", used, coming=["1g.20gb"])
    assert alone is not None
    assert before is not None
    assert before.start == 5
    answers = plan_positions(H100, used, [], ["1g.10gb", "1g.20gb"])
    assert [choice.start for choice in answers if choice] == [5, 6]


def test_making_room_returns_the_instances_to_destroy_for_a_start() -> None:
    used = mig_state(H100, [("2g.20gb", 0)])
    idle = [stands("1g.10gb", 2), stands("1g.10gb", 4, fixed=True)]
    assert instances_to_destroy(H100, "2g.20gb", 2, used, idle) == (stands("1g.10gb", 2),)
    assert instances_to_destroy(H100, "2g.20gb", 4, used, idle) is None
    assert instances_to_destroy(H100, "2g.20gb", 0, used, idle) is None
    assert instances_to_destroy(H100, "1g.10gb", 4, used, idle) == ()


def test_unknown_profile_has_no_position() -> None:
    assert choose_position(H100, "1g.5gb", EMPTY) is None
    assert plan_positions(H100, EMPTY, [], ["1g.5gb", "1g.10gb"])[1] is not None


@given(st.sampled_from(sorted(GEOMETRIES)), st.randoms(use_true_random=False))
def test_used_and_fixed_instances_are_never_destroyed_and_all_instances_fit_the_device(
    card: str, dice: random.Random
) -> None:
    geometry = GEOMETRIES[card]
    held: list[tuple[str, int]] = []
    idle: tuple[MigInstance, ...] = ()
    for _ in range(25):
        if held and dice.random() < 0.4:
            place = held.pop(dice.randrange(len(held)))
            idle += (MigInstance(profile=place[0], start=place[1], fixed=dice.random() < 0.2),)
        state = mig_state(geometry, held)
        choice = choose_position(geometry, dice.choice(geometry.profiles).name, state, idle)
        if choice is None:
            continue
        assert not any(i.fixed or i.place in held for i in choice.destroyed)
        assert instances_to_destroy(geometry, choice.profile, choice.start, state, idle) == choice.destroyed
        state, idle = apply_choice(geometry, state, idle, choice)
        held.append((choice.profile, choice.start))
        instances = [*held, *(i.place for i in idle)]
        profiles = [(geometry.profile(name), start) for name, start in instances]
        runs = [memory_mask(profile, start) for profile, start in profiles if profile]
        assert sum(run.bit_count() for run in runs) == mig_state(geometry, instances).mask.bit_count()
        assert sum(p.compute for p, _ in profiles if p) <= geometry.compute
        assert sum(p.media for p, _ in profiles if p) <= 1


@pytest.mark.parametrize("card", sorted(GEOMETRIES))
def test_plan_is_nearly_as_good_as_an_exhaustive_search(card: str) -> None:
    quality = Quality()
    for number in range(20):
        follow(GEOMETRIES[card], random.Random(number), quality)
    assert quality.placed_best > 100
    assert quality.placed >= 0.99 * quality.placed_best
    assert quality.destroyed <= 1.1 * quality.destroyed_best
