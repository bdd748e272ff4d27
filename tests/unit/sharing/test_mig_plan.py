"""Where MIG instances go: future profiles stay possible, few instances are destroyed, never one that is in use."""

from __future__ import annotations

import random

import pytest
from bench._mig_demand import Quality, follow
from hypothesis import given
from hypothesis import strategies as st

from calabash.model.mig import MigInstance, MigState, legal_starts, occupied, run_of, state_of
from calabash.model.mig_plan import choose, making_room, plan, standing, taken
from calabash.sched.cluster.mig_tables import GEOMETRIES

H100 = GEOMETRIES["H100"]
EMPTY = MigState()


def stands(profile: str, start: int, *, fixed: bool = False) -> MigInstance:
    return MigInstance(profile=profile, start=start, fixed=fixed)


def test_a_small_instance_leaves_the_largest_profiles_possible() -> None:
    choice = choose(H100, "1g.10gb", EMPTY)
    assert choice is not None
    assert choice.start == 6
    four, small = H100.profile("4g.40gb"), H100.profile("1g.10gb")
    assert four is not None
    assert small is not None
    assert legal_starts(H100, four, occupied(EMPTY, small, choice.start)) == (0,)


def test_an_idle_instance_is_used_again_where_that_costs_no_larger_profile() -> None:
    choice = choose(H100, "3g.40gb", EMPTY, [stands("3g.40gb", 4)])
    assert choice is not None
    assert (choice.start, choice.reused, choice.destroyed) == (4, True, ())


def test_an_instance_is_made_in_an_open_place_rather_than_in_that_of_an_idle_one() -> None:
    idle = [stands("1g.10gb", start) for start in (4, 5, 6)]
    choice = choose(H100, "2g.20gb", EMPTY, idle)
    assert choice is not None
    assert choice.start in (0, 2)
    assert choice.destroyed == ()


def test_as_few_idle_instances_as_possible_leave() -> None:
    used = state_of(H100, [("4g.40gb", 0)])
    idle = [stands("1g.10gb", 4), stands("1g.10gb", 5), stands("1g.10gb", 6)]
    choice = choose(H100, "1g.20gb", used, idle)
    assert choice is not None
    assert choice.destroyed == (stands("1g.10gb", 6),)


def test_a_fixed_instance_is_given_out_and_never_destroyed() -> None:
    idle = [stands("7g.80gb", 0, fixed=True)]
    assert choose(H100, "1g.10gb", EMPTY, idle) is None
    choice = choose(H100, "7g.80gb", EMPTY, idle)
    assert choice is not None
    assert choice.reused


def test_what_strangers_are_in_counts_as_in_use() -> None:
    foreign = MigInstance(profile="3g.40gb", start=0, foreign=True)
    held = state_of(H100, [("1g.10gb", 5)])
    state, idle = standing(H100, held, [foreign, stands("1g.10gb", 6), stands("1g.10gb", 5)])
    assert idle == (stands("1g.10gb", 6),)
    assert state == state_of(H100, [("3g.40gb", 0), ("1g.10gb", 5)])


def test_what_waits_behind_is_kept_a_place_for() -> None:
    """Alone a 1g goes to the end; with a 1g of double memory behind it, which could stand there only, it does not."""
    used = state_of(H100, [("4g.40gb", 0), ("1g.10gb", 4)])
    alone = choose(H100, "1g.10gb", used)
    before = choose(H100, "1g.10gb", used, coming=["1g.20gb"])
    assert alone is not None
    assert before is not None
    assert before.start == 5
    answers = plan(H100, used, [], ["1g.10gb", "1g.20gb"])
    assert [choice.start for choice in answers if choice] == [5, 6]


def test_room_for_a_start_is_what_the_choice_said() -> None:
    used = state_of(H100, [("2g.20gb", 0)])
    idle = [stands("1g.10gb", 2), stands("1g.10gb", 4, fixed=True)]
    assert making_room(H100, "2g.20gb", 2, used, idle) == (stands("1g.10gb", 2),)
    assert making_room(H100, "2g.20gb", 4, used, idle) is None
    assert making_room(H100, "2g.20gb", 0, used, idle) is None
    assert making_room(H100, "1g.10gb", 4, used, idle) == ()


def test_a_profile_that_the_card_does_not_have_has_no_place() -> None:
    assert choose(H100, "1g.5gb", EMPTY) is None
    assert plan(H100, EMPTY, [], ["1g.5gb", "1g.10gb"])[1] is not None


@given(st.sampled_from(sorted(GEOMETRIES)), st.randoms(use_true_random=False))
def test_nothing_in_use_or_fixed_is_touched_and_all_that_stands_fits_the_card(card: str, dice: random.Random) -> None:
    geometry = GEOMETRIES[card]
    held: list[tuple[str, int]] = []
    idle: tuple[MigInstance, ...] = ()
    for _ in range(25):
        if held and dice.random() < 0.4:
            place = held.pop(dice.randrange(len(held)))
            idle += (MigInstance(profile=place[0], start=place[1], fixed=dice.random() < 0.2),)
        state = state_of(geometry, held)
        choice = choose(geometry, dice.choice(geometry.profiles).name, state, idle)
        if choice is None:
            continue
        assert not any(i.fixed or i.place in held for i in choice.destroyed)
        assert making_room(geometry, choice.profile, choice.start, state, idle) == choice.destroyed
        state, idle = taken(geometry, state, idle, choice)
        held.append((choice.profile, choice.start))
        standing = [*held, *(i.place for i in idle)]
        profiles = [(geometry.profile(name), start) for name, start in standing]
        runs = [run_of(profile, start) for profile, start in profiles if profile]
        assert sum(run.bit_count() for run in runs) == state_of(geometry, standing).mask.bit_count()
        assert sum(p.compute for p, _ in profiles if p) <= geometry.compute
        assert sum(p.media for p, _ in profiles if p) <= 1


@pytest.mark.parametrize("card", sorted(GEOMETRIES))
def test_the_planner_places_what_an_exhaustive_search_places_and_destroys_hardly_more(card: str) -> None:
    quality = Quality()
    for number in range(20):
        follow(GEOMETRIES[card], random.Random(number), quality)
    assert quality.placed_best > 100
    assert quality.placed >= 0.99 * quality.placed_best
    assert quality.destroyed <= 1.1 * quality.destroyed_best
