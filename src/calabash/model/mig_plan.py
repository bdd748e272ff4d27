"""Placement of new MIG instances, and the idle instances that must be destroyed for them (pure).

Theory of operation. A device has used instances (``MigState``: allocations and unmanaged processes) and idle instances. Used
instances are never moved or destroyed. Idle instances are free ones, left by an earlier allocation, and fixed ones, which are
allocated but never destroyed. A start is possible if its memory slices overlap no used and no fixed instance. An idle instance
of the same profile at the same start is reused; free idle instances that overlap are destroyed. The chosen start is the one
that

1. lets most of the known waiting requests be placed, in their order (an exact search over all ways to place them),
2. destroys the fewest instances, including those that the waiting requests destroy,
3. keeps the largest profiles possible beside the used instances (``open_profiles``),
4. reuses an idle instance, 5. is the highest, so that the low starts of the large profiles stay free.

A compute instance is placed in a divided GPU instance of its profile that has free compute slices, the fullest first. If there
is none, a GPU instance is placed for it as for a request for the whole GPU instance.

A search considers at most ``COMING_MAX`` waiting requests, and its results are cached, so that the time of a decision is
bounded.
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
    best_compute_slice,
    free_compute_slices,
    legal_starts,
    memory_mask,
    open_profiles,
    with_instance,
)

COMING_MAX = 6
_COMING_CONSIDERED_MAX = 64

_Known = tuple[str, int, bool, Kept]
Idle = tuple[_Known, ...]
"""Idle GPU instances: profile, start, True if fixed, compute instances that must not be destroyed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigChoice:
    """Chosen position of one new instance.

    Args:
        start: first memory slice.
        part: first compute slice of a compute instance; -1 for a whole GPU instance.
        destroyed: idle instances that must be destroyed first.
        reused: the GPU instance exists already and is idle.
        shared: the GPU instance exists already and has other compute instances.
    """

    profile: str
    start: int
    part: int = -1
    destroyed: tuple[MigInstance, ...] = ()
    reused: bool = False
    shared: bool = False

    @property
    def place(self) -> MigPlace:
        return MigPlace(self.start, self.part)


def choose_position(
    geometry: MigGeometry,
    name: str,
    state: MigState,
    idle: Sequence[MigInstance] = (),
    coming: Sequence[str] = (),
) -> MigChoice | None:
    """Return the best position for one more instance, or None if there is none.

    Args:
        name: profile of the new instance.
        state: used resources of the device.
        idle: idle instances on the device.
        coming: profiles of the waiting requests that follow this one.
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


def plan_positions(
    geometry: MigGeometry, state: MigState, idle: Sequence[MigInstance], wanted: Sequence[str]
) -> tuple[MigChoice | None, ...]:
    """Return the positions of all ``wanted`` profiles, placed in their order; None for each that does not fit."""
    left = tuple(idle)
    choices: list[MigChoice | None] = []
    for number, name in enumerate(wanted):
        choice = choose_position(geometry, name, state, left, wanted[number + 1 :])
        choices.append(choice)
        if choice is not None:
            state, left = apply_choice(geometry, state, left, choice)
    return tuple(choices)


def apply_choice(
    geometry: MigGeometry, state: MigState, idle: Sequence[MigInstance], choice: MigChoice
) -> tuple[MigState, tuple[MigInstance, ...]]:
    """Return the state and the idle instances after a choice is carried out."""
    profile = geometry.profile(choice.profile)
    assert profile is not None
    same = (profile.instance, choice.start)
    gone = {i.place for i in choice.destroyed} | ({same} if choice.reused else set())
    after = with_instance(state, profile, choice.start, choice.part)
    kept = next((i.kept for i in idle if choice.reused and i.place == same), ())
    if kept and profile.of:
        after = after.with_shared(replace(next(s for s in after.shared if s.place == same), kept=kept))
    return after, tuple(i for i in idle if i.place not in gone)


def place_together(
    geometry: MigGeometry,
    names: Sequence[str],
    used: MigState,
    instances: Sequence[MigInstance],
    coming: Sequence[str] = (),
) -> tuple[MigChoice, ...] | None:
    """Return positions for all profiles on one device, placed in their order; None if not all of them fit.

    ``used`` are the resources that allocations use, ``instances`` all GPU instances on the device, and ``coming`` the profiles
    of the waiting requests that follow.
    """
    state, left = used_and_idle(geometry, used, instances)
    found: list[MigChoice] = []
    for number, name in enumerate(names):
        choice = choose_position(geometry, name, state, left, (*names[number + 1 :], *coming))
        if choice is None:
            return None
        found.append(choice)
        state, left = apply_choice(geometry, state, left, choice)
    return tuple(found)


def instances_to_destroy(
    geometry: MigGeometry, name: str, start: int, state: MigState, idle: Sequence[MigInstance]
) -> tuple[MigInstance, ...] | None:
    """Return the idle instances that must be destroyed for an instance of the profile at this start.

    The result is () if the position is free or an idle instance is reused, and None if the position is not possible.
    """
    profile = geometry.profile(name)
    if profile is None:
        return None
    for option in _options(geometry, profile, state, _known(idle)):
        if option.start == start:
            gone = {entry[:2] for entry in option.gone}
            return tuple(i for i in idle if i.place in gone)
    return None


def used_and_idle(
    geometry: MigGeometry, used: MigState, instances: Sequence[MigInstance]
) -> tuple[MigState, tuple[MigInstance, ...]]:
    """Return the used state of a device, including unmanaged processes, and its idle instances.

    ``used`` are the resources that allocations use, ``instances`` all GPU instances on the device. No compute instance
    can be added to a GPU instance that unmanaged processes use.
    """
    state = used
    idle: list[MigInstance] = []
    for instance in instances:
        profile = geometry.profile(instance.profile)
        if profile is None:
            continue
        if used.mask & memory_mask(profile, instance.start):  # used by an allocation, or to be destroyed for one
            parts = next((s for s in used.shared if s.place == instance.place), None)
            if parts is not None and (instance.foreign or instance.kept):
                mask = (1 << profile.compute) - 1 if instance.foreign else parts.mask
                state = state.with_shared(replace(parts, mask=mask, kept=instance.kept))
            continue
        if instance.foreign:
            state = with_instance(state, profile, instance.start)
        else:
            idle.append(instance)
    return state, tuple(idle)


def possible_places(
    geometry: MigGeometry, profile: MigProfile, used: MigState, instances: Sequence[MigInstance]
) -> tuple[MigPlace, ...]:
    """Return the possible positions of one more GPU instance or compute instance of the profile."""
    if not instances and not profile.of:
        return tuple(map(MigPlace, legal_starts(geometry, profile, used)))
    state, idle = used_and_idle(geometry, used, instances)
    options = _options(geometry, profile, state, _known(idle))
    if not profile.of:
        return tuple(MigPlace(option.start) for option in options)
    found = [
        MigPlace(shared.start, part)
        for shared in state.shared
        if shared.profile == profile.of
        for part in _allowed(geometry, shared.start, free_compute_slices(profile, shared.mask, shared.kept))
    ]
    for option in options:
        parts = _allowed(geometry, option.start, free_compute_slices(profile, 0, option.kept))
        found += [MigPlace(option.start, part) for part in parts]
    return tuple(found)


def possible_starts(
    geometry: MigGeometry, profile: MigProfile, used: MigState, instances: Sequence[MigInstance]
) -> tuple[int, ...]:
    """Return the possible starts of one more GPU instance: of the profile, or to contain a compute instance of it."""
    places = possible_places(geometry, profile, used, instances)
    return tuple(dict.fromkeys(place.start for place in places))


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
    """Return the state after a GPU instance is taken: of the profile, or to contain a compute instance of it."""
    return with_instance(
        state, replace(profile, compute=profile.whole, of="", whole=0) if profile.of else profile, start
    )


def _allowed(geometry: MigGeometry, start: int, parts: Sequence[int]) -> tuple[int, ...]:
    """Return the compute slices of ``parts`` that the restriction ``geometry.only`` allows."""
    only = geometry.only
    return tuple(p for p in parts if only is None or (only.start == start and only.part in (-1, p)))


def _joins(geometry: MigGeometry, profile: MigProfile, state: MigState) -> Iterator[tuple[MigShared, MigPlace]]:
    """Yield each divided GPU instance in which a compute instance of the profile fits, and the best position there."""
    for shared in state.shared:
        if shared.profile == profile.of:
            allowed = _allowed(geometry, shared.start, free_compute_slices(profile, shared.mask, shared.kept))
            best = best_compute_slice(profile, shared.mask, shared.kept)
            if allowed:
                yield shared, MigPlace(shared.start, best if best in allowed else allowed[0])


def _first_part(geometry: MigGeometry, profile: MigProfile, option: _Option) -> int:
    allowed = _allowed(geometry, option.start, free_compute_slices(profile, 0, option.kept))
    best = best_compute_slice(profile, 0, option.kept)
    return best if best in allowed else allowed[0]


def _instances(geometry: MigGeometry, names: Sequence[str], state: MigState, profile: MigProfile) -> tuple[str, ...]:
    """Return the profiles of the GPU instances that waiting requests will need, at most ``COMING_MAX``.

    Compute instances first use what is free in divided GPU instances, also in the one that ``profile`` will be in.
    """
    ahead = names[:_COMING_CONSIDERED_MAX]
    if not any("c." in name for name in ahead):
        return tuple(ahead[:COMING_MAX])
    free_slices: dict[str, list[int]] = {}
    for shared in state.shared:
        whole = geometry.profile(shared.profile)
        free_slices.setdefault(shared.profile, []).append(whole.compute - shared.mask.bit_count() if whole else 0)
    if profile.of:
        free_slices.setdefault(profile.of, []).append(profile.whole - profile.compute)
    wanted: list[str] = []
    for name in ahead:
        known = geometry.profile(name)
        if known is None or not known.of:
            wanted.append(name)
            continue
        free = free_slices.setdefault(known.of, [])
        number = next((n for n, left in enumerate(free) if left >= known.compute), None)
        if number is None:
            wanted.append(known.of)
            free.append(known.whole - known.compute)
        else:
            free[number] -= known.compute
    return tuple(wanted[:COMING_MAX])


def _options(geometry: MigGeometry, profile: MigProfile, state: MigState, idle: Idle) -> Iterator[_Option]:
    """Yield the possible starts of a profile, each with the idle instances that are destroyed there and that stay."""
    for start in legal_starts(geometry, profile, state):
        if profile.of and not _allowed(geometry, start, free_compute_slices(profile, 0)):
            continue
        same = next((i for i in idle if i[:2] == (profile.instance, start)), None)
        if same is not None:
            plain = not (profile.of or same[3])
            if plain or _allowed(geometry, start, free_compute_slices(profile, 0, same[3])):
                left = tuple(i for i in idle if i is not same)
                yield _Option(start=start, gone=(), left=left, reused=True, kept=same[3])
            continue
        gone = _in_the_way(geometry, profile, start, state, idle)
        if gone is not None:
            yield _Option(start=start, gone=gone, left=tuple(i for i in idle if i not in gone), reused=False)


def _in_the_way(geometry: MigGeometry, profile: MigProfile, start: int, state: MigState, idle: Idle) -> Idle | None:
    """Return the idle instances that must be destroyed for a new GPU instance, or None if a fixed one is among them.

    These are the instances on the new instance's memory slices, the one that has the media engine if the new one needs
    it, and the fewest others that free enough compute slices.
    """
    run = memory_mask(profile, start)
    gone: list[_Known] = []
    compute = state.compute + profile.instance_compute
    others: list[tuple[int, _Known]] = []
    for entry in idle:
        other = geometry.profile(entry[0])
        if other is None:
            continue
        if run & memory_mask(other, entry[1]) or (profile.media and other.media):
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
    """Return for each waiting profile if it can be placed, and the number of idle instances to destroy for all of them.

    A profile counts as placed if it fits together with all earlier profiles that fit.
    """
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
    """Return the least number of idle instances to destroy to place all profiles; None if they do not all fit."""
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
        more = _cheapest(geometry, tuple(rest), with_instance(state, largest, option.start), option.left)
        if more is not None and (best is None or len(option.gone) + more < best):
            best = len(option.gone) + more
            if best == 0:
                break
    return best
