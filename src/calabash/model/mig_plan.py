"""Where MIG instances go, and which idle ones have to leave for them. Pure; nothing in use is ever moved or destroyed.

Theory of operation. A card is what is in use (``MigState``: tenants and strangers) and the instances that stand idle: free
ones, kept from an earlier tenant, and fixed ones, which are given out but never destroyed. A start is *possible* when its
run is clear of what is in use and of fixed instances; an idle instance of the same profile at the same start is simply
reused, and free ones in the way are destroyed. Of the possible starts that one is taken which

1. leaves room for most of what is known to come, in its order (an exact search over all ways to place those),
2. destroys the fewest instances, those for what comes counted with it,
3. keeps the largest profiles possible beside what is in use (``open_profiles``),
4. reuses an instance, 5. is the highest, so that the low starts of the large profiles stay open.

A part of an instance joins one of its profile in which other parts are and its size has room, the fullest first. Else an
instance is found for it as for one that is wanted whole, and it begins where the largest parts stay possible.

A search looks at ``COMING_MAX`` requests at most and is remembered, so that a decision takes a bounded time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from calabash.model.mig import (
    Kept,
    MigGeometry,
    MigInstance,
    MigPlace,
    MigProfile,
    MigShared,
    MigState,
    best_part,
    legal_starts,
    occupied,
    open_parts,
    open_profiles,
    run_of,
)

COMING_MAX = 6
_COMING_LOOK_MAX = 64

_Known = tuple[str, int, bool, Kept]
Idle = tuple[_Known, ...]
"""Idle instances: profile, start, whether fixed, parts that have to stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigChoice:
    """Where one instance goes: ``destroyed`` have to leave first; ``reused``: it stands there already. Of a part: ``part`` is
    its first compute slice, and ``shared``: others are in its instance."""

    profile: str
    start: int
    part: int = -1
    destroyed: tuple[MigInstance, ...] = ()
    reused: bool = False
    shared: bool = False

    @property
    def place(self) -> MigPlace:
        return MigPlace(self.start, self.part)


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
    if profile.of:
        joins = list(_joins(geometry, profile, state))
        if joins:
            _, place = max(joins, key=lambda join: (join[0].mask.bit_count(), join[0].start))
            return MigChoice(profile=profile.name, start=place.start, part=place.part, shared=True)
    options = list(_options(geometry, profile, state, _known(idle)))
    if not options:
        return None
    ahead = _instances(geometry, coming, state, profile) if len(options) > 1 else ()

    def merit(option: _Option) -> tuple[object, ...]:
        after = _whole(state, profile, option.start)
        placed, more = _ahead(geometry, ahead, after, option.left) if ahead else ((), 0)
        cost = len(option.gone) + more
        return (placed, -cost, open_profiles(geometry, after), option.reused, option.start)

    best = max(options, key=merit)
    gone = {entry[:2] for entry in best.gone}
    return MigChoice(
        profile=profile.name,
        start=best.start,
        part=_first_part(geometry, profile, best) if profile.of else -1,
        destroyed=tuple(i for i in idle if i.place in gone),
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
    profile = geometry.profile(choice.profile)
    assert profile is not None
    same = (profile.instance, choice.start)
    gone = {i.place for i in choice.destroyed} | ({same} if choice.reused else set())
    after = occupied(state, profile, choice.start, choice.part)
    kept = next((i.kept for i in idle if choice.reused and i.place == same), ())
    if kept and profile.of:
        after = after.with_shared(replace(next(s for s in after.shared if s.place == same), kept=kept))
    return after, tuple(i for i in idle if i.place not in gone)


def together(
    geometry: MigGeometry,
    names: Sequence[str],
    used: MigState,
    instances: Sequence[MigInstance],
    coming: Sequence[str] = (),
) -> tuple[MigChoice, ...] | None:
    """Places for all of these on one card, who stands first before who stands later; None where not all have one."""
    state, left = standing(geometry, used, instances)
    found: list[MigChoice] = []
    for number, name in enumerate(names):
        choice = choose(geometry, name, state, left, (*names[number + 1 :], *coming))
        if choice is None:
            return None
        found.append(choice)
        state, left = taken(geometry, state, left, choice)
    return tuple(found)


def making_room(
    geometry: MigGeometry, name: str, start: int, state: MigState, idle: Sequence[MigInstance]
) -> tuple[MigInstance, ...] | None:
    """Which idle instances leave for this place, () where it is free or can be reused; None where it cannot be had."""
    profile = geometry.profile(name)
    if profile is None:
        return None
    for option in _options(geometry, profile, state, _known(idle)):
        if option.start == start:
            gone = {entry[:2] for entry in option.gone}
            return tuple(i for i in idle if i.place in gone)
    return None


def standing(
    geometry: MigGeometry, used: MigState, instances: Sequence[MigInstance]
) -> tuple[MigState, tuple[MigInstance, ...]]:
    """What is in use of a card, strangers included, and what stands on it idle, given what tenants hold. An instance with a
    stranger in it has no room for more parts."""
    state = used
    idle: list[MigInstance] = []
    for instance in instances:
        profile = geometry.profile(instance.profile)
        if profile is None:
            continue
        if used.mask & run_of(profile, instance.start):  # a tenant's, or it is about to leave for one
            parts = next((s for s in used.shared if s.place == instance.place), None)
            if parts is not None and (instance.foreign or instance.kept):
                mask = (1 << profile.compute) - 1 if instance.foreign else parts.mask
                state = state.with_shared(replace(parts, mask=mask, kept=instance.kept))
            continue
        if instance.foreign:
            state = occupied(state, profile, instance.start)
        else:
            idle.append(instance)
    return state, tuple(idle)


def possible_places(
    geometry: MigGeometry, profile: MigProfile, used: MigState, instances: Sequence[MigInstance]
) -> tuple[MigPlace, ...]:
    """Places that one more instance, or part, can have now."""
    if not instances and not profile.of:
        return tuple(map(MigPlace, legal_starts(geometry, profile, used)))
    state, idle = standing(geometry, used, instances)
    options = _options(geometry, profile, state, _known(idle))
    if not profile.of:
        return tuple(MigPlace(option.start) for option in options)
    found = [
        MigPlace(shared.start, part)
        for shared in state.shared
        if shared.profile == profile.of
        for part in _allowed(geometry, shared.start, open_parts(profile, shared.mask, shared.kept))
    ]
    for option in options:
        parts = _allowed(geometry, option.start, open_parts(profile, 0, option.kept))
        found += [MigPlace(option.start, part) for part in parts]
    return tuple(found)


def possible_starts(
    geometry: MigGeometry, profile: MigProfile, used: MigState, instances: Sequence[MigInstance]
) -> tuple[int, ...]:
    """Starts that one more instance can have now; of a part: those of the instances that it can be in."""
    places = possible_places(geometry, profile, used, instances)
    return tuple(dict.fromkeys(place.start for place in places))


# ---- inside -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    start: int
    gone: Idle
    left: Idle
    reused: bool
    kept: Kept = ()


def _known(idle: Sequence[MigInstance]) -> Idle:
    return tuple((i.profile, i.start, i.fixed, i.kept) for i in idle)


def _whole(state: MigState, profile: MigProfile, start: int) -> MigState:
    """With the instance of a profile taken, also where a part of it is all that is wanted."""
    return occupied(state, replace(profile, compute=profile.whole, of="", whole=0) if profile.of else profile, start)


def _allowed(geometry: MigGeometry, start: int, parts: Sequence[int]) -> tuple[int, ...]:
    """Those that may be chosen at all, where that is decided already."""
    only = geometry.only
    return tuple(p for p in parts if only is None or (only.start == start and only.part in (-1, p)))


def _joins(geometry: MigGeometry, profile: MigProfile, state: MigState) -> Iterator[tuple[MigShared, MigPlace]]:
    """Instances in which others have parts, and where this one's best place is in each."""
    for shared in state.shared:
        if shared.profile == profile.of:
            allowed = _allowed(geometry, shared.start, open_parts(profile, shared.mask, shared.kept))
            best = best_part(profile, shared.mask, shared.kept)
            if allowed:
                yield shared, MigPlace(shared.start, best if best in allowed else allowed[0])


def _first_part(geometry: MigGeometry, profile: MigProfile, option: _Option) -> int:
    allowed = _allowed(geometry, option.start, open_parts(profile, 0, option.kept))
    best = best_part(profile, 0, option.kept)
    return best if best in allowed else allowed[0]


def _instances(geometry: MigGeometry, names: Sequence[str], state: MigState, profile: MigProfile) -> tuple[str, ...]:
    """The instances that will be wanted for these, beside one of this profile: parts go into what has room for them."""
    ahead = names[:_COMING_LOOK_MAX]
    if not any("c." in name for name in ahead):
        return tuple(ahead[:COMING_MAX])
    rooms: dict[str, list[int]] = {}
    for shared in state.shared:
        whole = geometry.profile(shared.profile)
        rooms.setdefault(shared.profile, []).append(whole.compute - shared.mask.bit_count() if whole else 0)
    if profile.of:
        rooms.setdefault(profile.of, []).append(profile.whole - profile.compute)
    wanted: list[str] = []
    for name in ahead:
        known = geometry.profile(name)
        if known is None or not known.of:
            wanted.append(name)
            continue
        room = rooms.setdefault(known.of, [])
        number = next((n for n, left in enumerate(room) if left >= known.compute), None)
        if number is None:
            wanted.append(known.of)
            room.append(known.whole - known.compute)
        else:
            room[number] -= known.compute
    return tuple(wanted[:COMING_MAX])


def _options(geometry: MigGeometry, profile: MigProfile, state: MigState, idle: Idle) -> Iterator[_Option]:
    """The possible starts of a profile, with what each destroys and leaves."""
    for start in legal_starts(geometry, profile, state):
        if profile.of and not _allowed(geometry, start, open_parts(profile, 0)):
            continue
        same = next((i for i in idle if i[:2] == (profile.instance, start)), None)
        if same is not None:
            plain = not (profile.of or same[3])
            if plain or _allowed(geometry, start, open_parts(profile, 0, same[3])):
                left = tuple(i for i in idle if i is not same)
                yield _Option(start=start, gone=(), left=left, reused=True, kept=same[3])
            continue
        gone = _in_the_way(geometry, profile, start, state, idle)
        if gone is not None:
            yield _Option(start=start, gone=gone, left=tuple(i for i in idle if i not in gone), reused=False)


def _in_the_way(geometry: MigGeometry, profile: MigProfile, start: int, state: MigState, idle: Idle) -> Idle | None:
    """Idle instances that a new one cannot stand beside: on its memory slices, with its media engine, and as few others as
    give it its compute slices. None when a fixed one is among them."""
    run = run_of(profile, start)
    gone: list[_Known] = []
    compute = state.compute + profile.instance_compute
    others: list[tuple[int, _Known]] = []
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
