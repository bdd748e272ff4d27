"""Where MIG instances go, and which idle ones have to leave for them. Pure; nothing in use is ever moved or destroyed.

Theory of operation. A card is what is in use (``MigState``: tenants and strangers) and the instances that stand idle: free
ones, kept from an earlier tenant, and fixed ones, which are given out but never destroyed. A start is *possible* when its
run is clear of what is in use and of fixed instances; an idle instance of the same profile at the same start is simply
reused, and free ones in the way are destroyed. Of the possible starts that one is taken which

1. leaves room for most of what is known to come, in its order (an exact search over all ways to place those),
2. destroys the fewest instances, those for what comes counted with it,
3. keeps the largest profiles possible beside what is in use (``open_profiles``),
4. reuses an instance, 5. is the highest, so that the low starts of the large profiles stay open.

A search looks at ``COMING_MAX`` requests at most and is remembered, so that a decision takes a bounded time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from calabash.model.mig import (
    MigGeometry,
    MigInstance,
    MigProfile,
    MigState,
    legal_starts,
    occupied,
    open_profiles,
    run_of,
)

COMING_MAX = 6

Idle = tuple[tuple[str, int, bool], ...]
"""Idle instances: profile, start, whether fixed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigChoice:
    """Where one instance goes: ``destroyed`` have to leave first; ``reused``: it stands there already."""

    profile: str
    start: int
    destroyed: tuple[MigInstance, ...] = ()
    reused: bool = False


def choose(
    geometry: MigGeometry,
    name: str,
    state: MigState,
    idle: Sequence[MigInstance] = (),
    coming: Sequence[str] = (),
) -> MigChoice | None:
    """The best place for one more instance; None where there is none.

    Args:
        state: what is in use. idle: what else stands on the card. coming: profiles that wait behind this one.
    """
    profile = geometry.profile(name)
    if profile is None:
        return None
    known = tuple((i.profile, i.start, i.fixed) for i in idle)
    options = list(_options(geometry, profile, state, known))
    if not options:
        return None
    ahead = tuple(coming[:COMING_MAX]) if len(options) > 1 else ()

    def merit(option: _Option) -> tuple[object, ...]:
        after = occupied(state, profile, option.start)
        placed, more = _ahead(geometry, ahead, after, option.left) if ahead else ((), 0)
        cost = len(option.gone) + more
        return (placed, -cost, open_profiles(geometry, after), option.reused, option.start)

    best = max(options, key=merit)
    gone = set(best.gone)
    return MigChoice(
        profile=name,
        start=best.start,
        destroyed=tuple(i for i in idle if (i.profile, i.start, i.fixed) in gone),
        reused=best.reused,
    )


def plan(
    geometry: MigGeometry, state: MigState, idle: Sequence[MigInstance], wanted: Sequence[str]
) -> tuple[MigChoice | None, ...]:
    """Where all of ``wanted`` go, who stands first before who stands later; None for those that find no place."""
    left = tuple(idle)
    choices: list[MigChoice | None] = []
    for number, name in enumerate(wanted):
        choice = choose(geometry, name, state, left, wanted[number + 1 :])
        choices.append(choice)
        if choice is not None:
            state, left = taken(geometry, state, left, choice)
    return tuple(choices)


def taken(
    geometry: MigGeometry, state: MigState, idle: Sequence[MigInstance], choice: MigChoice
) -> tuple[MigState, tuple[MigInstance, ...]]:
    """What is in use and what is idle after a choice was carried out."""
    gone = {i.place for i in choice.destroyed} | ({(choice.profile, choice.start)} if choice.reused else set())
    profile = geometry.profile(choice.profile)
    assert profile is not None
    return occupied(state, profile, choice.start), tuple(i for i in idle if i.place not in gone)


def making_room(
    geometry: MigGeometry, name: str, start: int, state: MigState, idle: Sequence[MigInstance]
) -> tuple[MigInstance, ...] | None:
    """Which idle instances leave for this place, () where it is free or can be reused; None where it cannot be had."""
    profile = geometry.profile(name)
    if profile is None:
        return None
    known = tuple((i.profile, i.start, i.fixed) for i in idle)
    for option in _options(geometry, profile, state, known):
        if option.start == start:
            gone = set(option.gone)
            return tuple(i for i in idle if (i.profile, i.start, i.fixed) in gone)
    return None


def standing(
    geometry: MigGeometry, used: MigState, instances: Sequence[MigInstance]
) -> tuple[MigState, tuple[MigInstance, ...]]:
    """What is in use of a card, strangers included, and what stands on it idle, given what tenants hold."""
    state = used
    idle: list[MigInstance] = []
    for instance in instances:
        profile = geometry.profile(instance.profile)
        if profile is None or used.mask & run_of(profile, instance.start):
            continue  # a tenant's, or it is about to leave for one
        if instance.foreign:
            state = occupied(state, profile, instance.start)
        else:
            idle.append(instance)
    return state, tuple(idle)


def possible_starts(
    geometry: MigGeometry, profile: MigProfile, used: MigState, instances: Sequence[MigInstance]
) -> tuple[int, ...]:
    """Starts that one more instance can have now."""
    if not instances:
        return legal_starts(geometry, profile, used)
    state, idle = standing(geometry, used, instances)
    known = tuple((i.profile, i.start, i.fixed) for i in idle)
    return tuple(option.start for option in _options(geometry, profile, state, known))


# ---- inside -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    start: int
    gone: Idle
    left: Idle
    reused: bool


def _options(geometry: MigGeometry, profile: MigProfile, state: MigState, idle: Idle) -> Iterator[_Option]:
    """The possible starts of a profile, with what each destroys and leaves."""
    for start in legal_starts(geometry, profile, state):
        same = next((i for i in idle if i[:2] == (profile.name, start)), None)
        if same is not None:
            yield _Option(start=start, gone=(), left=tuple(i for i in idle if i is not same), reused=True)
            continue
        gone = _in_the_way(geometry, profile, start, state, idle)
        if gone is not None:
            yield _Option(start=start, gone=gone, left=tuple(i for i in idle if i not in gone), reused=False)


def _in_the_way(geometry: MigGeometry, profile: MigProfile, start: int, state: MigState, idle: Idle) -> Idle | None:
    """Idle instances that a new one cannot stand beside: on its memory slices, with its media engine, and as few others as
    give it its compute slices. None when a fixed one is among them."""
    run = run_of(profile, start)
    gone: list[tuple[str, int, bool]] = []
    compute = state.compute + profile.compute
    others: list[tuple[int, tuple[str, int, bool]]] = []
    for entry in idle:
        other = geometry.profile(entry[0])
        if other is None:
            continue
        if run & run_of(other, entry[1]) or (profile.media and other.media):
            if entry[2]:
                return None
            gone.append(entry)
        else:
            compute += other.compute
            if not entry[2]:
                others.append((other.compute, entry))
    for slices, entry in sorted(others, reverse=True):
        if compute <= geometry.compute:
            break
        gone.append(entry)
        compute -= slices
    return tuple(gone) if compute <= geometry.compute else None


@lru_cache(maxsize=8192)
def _ahead(geometry: MigGeometry, names: tuple[str, ...], state: MigState, idle: Idle) -> tuple[tuple[bool, ...], int]:
    """Which of these could all be placed, the first before the later, and how many instances that would destroy."""
    kept: tuple[str, ...] = ()
    placed: list[bool] = []
    cost = 0
    for name in names:
        more = _cheapest(geometry, tuple(sorted((*kept, name))), state, idle)
        placed.append(more is not None)
        if more is not None:
            kept, cost = (*kept, name), more
    return tuple(placed), cost


@lru_cache(maxsize=16384)
def _cheapest(geometry: MigGeometry, names: tuple[str, ...], state: MigState, idle: Idle) -> int | None:
    """The fewest instances that have to leave for all of these; None when they cannot all stand on the card."""
    if not names:
        return 0
    profiles = [(geometry.profile(name), name) for name in dict.fromkeys(names)]
    largest, name = max(profiles, key=lambda entry: (entry[0].slices, entry[0].compute) if entry[0] else (99, 99))
    if largest is None:
        return None
    rest = list(names)
    rest.remove(name)
    best: int | None = None
    for option in _options(geometry, largest, state, idle):
        more = _cheapest(geometry, tuple(rest), occupied(state, largest, option.start), option.left)
        if more is not None and (best is None or len(option.gone) + more < best):
            best = len(option.gone) + more
            if best == 0:
                break
    return best
