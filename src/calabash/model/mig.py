"""Geometry of MIG: which instances fit on a card, and at which start they do least harm.

Theory of operation. A card has memory slices in a row and a number of compute slices. A profile takes a contiguous
run of memory slices at one of its legal starts, and some compute slices; a "+me" profile also takes the only media
engine. The state of a card is therefore a bitmask of used memory slices, a count of used compute slices and a media
flag. Where several starts are legal, the one is taken that leaves the most valuable set of profiles possible: the
largest profile that still fits is kept first, then the second largest, and so on; the higher start wins a tie, so
that the big profiles' low starts stay open.

An instance can be cut once more: ``1c.3g.40gb`` is a part with one of the three compute slices of a ``3g.40gb``. Parts of one
instance have compute slices of their own and its memory together. A part begins at a multiple of its own size, as NVML
places compute instances; the instance is taken as a whole with its first part and given back with its last.

Geometry is data and comes from the driver of the card. This is the one place where it is reckoned with: the
scheduler, the sharing mode and the node's executor all ask here, and a test holds it against what NVML accepts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

_PART_SIZES = frozenset({1, 2, 3, 4, 6})  # compute instances that NVML has names for, beside those of all slices
_PROFILE_NAME = re.compile(r"(?:[1-9]c\.)?[1-9][0-9]?g\.[1-9][0-9]{0,3}gb(?:[+-][a-z]{2,8}(?:\.[a-z]{2,8})?){0,2}")


def is_profile_name(text: str) -> bool:
    """Whether it is written like the name of a profile: ``1g.10gb``, ``1g.10gb+me``, ``1c.3g.40gb``."""
    return _PROFILE_NAME.fullmatch(text) is not None


def split_profile(name: str) -> tuple[int, str]:
    """Compute slices and GPU instance of a name: ``1c.3g.40gb`` is one slice of a ``3g.40gb``, ``3g.40gb`` is 0: all."""
    slices, dot, profile = name.partition("c.")
    return (int(slices), profile) if dot and slices.isdigit() else (0, name)


class MigPlace(NamedTuple):
    """Where an instance is: its first memory slice, and for a part of one the first compute slice in there, else -1."""

    start: int
    part: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """One way to cut a card.

    ``id`` is the driver's number of it, -1 where no driver was asked. ``starts`` are legal first memory slices;
    ``memory_mib`` is what the tenant may use; ``slices`` counts memory slices and ``compute`` compute slices;
    ``limit`` is the most instances of this profile on one card; ``media``: it has the only media engine.
    Of a part, ``of`` names the profile of its instance and ``whole`` counts the compute slices of that, ``memory_mib`` is
    its fair part of a memory that it shares, and the rest is as of its instance.
    """

    id: int = -1
    name: str
    compute: int
    slices: int
    starts: tuple[int, ...]
    limit: int
    memory_mib: int
    media: bool = False
    of: str = ""
    whole: int = 0

    @property
    def instance(self) -> str:
        """The profile of the GPU instance that it is, or is a part of."""
        return self.of or self.name

    @property
    def instance_compute(self) -> int:
        """Compute slices of that."""
        return self.whole or self.compute


@dataclass(frozen=True, slots=True, kw_only=True)
class MigGeometry:
    """All profiles of a device model; ``slices`` and ``compute`` are what one card has. ``only``: as if what is new could be
    there only."""

    slices: int
    compute: int
    profiles: tuple[MigProfile, ...]
    only: MigPlace | None = None

    def profile(self, name: str) -> MigProfile | None:
        """The profile of that name, which may be one of a part; or None. A part of all slices is the instance itself."""
        found = next((profile for profile in self.profiles if profile.name == name), None)
        if found is None and "c." in name:
            compute, base = split_profile(name)
            whole = self.profile(base) if compute else None
            return _part_of(whole, compute) if whole is not None else None
        return found

    def only_at(self, place: MigPlace) -> MigGeometry:
        """The same card as if what is new could be there only."""
        at = place.start
        profiles = tuple(replace(p, starts=(at,) if at in p.starts else ()) for p in self.profiles)
        return replace(self, profiles=profiles, only=place)


@lru_cache(maxsize=1024)
def _part_of(whole: MigProfile, compute: int) -> MigProfile | None:
    if compute == whole.compute:
        return whole
    if compute > whole.compute or compute not in _PART_SIZES:
        return None
    return replace(
        whole,
        name=f"{compute}c.{whole.name}",
        compute=compute,
        memory_mib=whole.memory_mib * compute // whole.compute,
        of=whole.name,
        whole=whole.compute,
    )


Kept = tuple[tuple[int, int], ...]
"""Parts of an instance that nobody may destroy: first compute slice and size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigShared:
    """A GPU instance of which parts are taken: ``mask`` of its compute slices."""

    profile: str
    start: int
    mask: int
    kept: Kept = ()

    @property
    def place(self) -> tuple[str, int]:
        """Its profile and first memory slice."""
        return self.profile, self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class MigState:
    """What is taken of one card: mask of memory slices, compute slices, whether the media engine is gone. ``shared`` are the
    instances, among those that are taken, which parts have."""

    mask: int = 0
    compute: int = 0
    media: bool = False
    shared: tuple[MigShared, ...] = ()

    def joined(self, geometry: MigGeometry, name: str, start: int, part: int = -1) -> MigState:
        """With one more instance, or part; a profile that the card does not have takes nothing."""
        profile = geometry.profile(name)
        return occupied(self, profile, start, part) if profile is not None else self

    def with_shared(self, shared: MigShared) -> MigState:
        """The same with this in place of what is said of that instance."""
        others = (s for s in self.shared if s.place != shared.place)
        return replace(self, shared=tuple(sorted((*others, shared), key=lambda s: s.start)))


@dataclass(frozen=True, slots=True, kw_only=True)
class MigPart:
    """A compute instance that stands in a GPU instance: a device that programs see. ``kept``: it was not made by us."""

    start: int
    compute: int
    uuid: str = ""
    kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """A GPU instance that stands on a card, whoever has it.

    ``fixed``: it was found on the card, or a layout that somebody wrote has it: it is given out, and never destroyed
    for another shape. ``foreign``: processes without a slice are in it. ``uuid`` is its first MIG device's.
    """

    profile: str
    start: int
    uuid: str = ""
    fixed: bool = False
    foreign: bool = False
    parts: tuple[MigPart, ...] = ()

    @property
    def kept(self) -> Kept:
        """Its parts that have to stay as they are."""
        return tuple((part.start, part.compute) for part in self.parts if part.kept)

    @property
    def stays(self) -> bool:
        """Whether it is on the card as long as nobody outside of the product takes it away."""
        return self.fixed or self.foreign

    @property
    def place(self) -> tuple[str, int]:
        """Its profile and first memory slice."""
        return self.profile, self.start


def run_of(profile: MigProfile, start: int) -> int:
    """The memory slices of an instance, as a mask."""
    return ((1 << profile.slices) - 1) << start


def span_of(profile: MigProfile, part: int) -> int:
    """The compute slices of a part in its instance, as a mask."""
    return ((1 << profile.compute) - 1) << part


def open_parts(profile: MigProfile, mask: int, kept: Kept = ()) -> tuple[int, ...]:
    """First compute slices at which one more of this profile has room in an instance of which ``mask`` is taken."""
    found = []
    for first in range(0, profile.instance_compute - profile.compute + 1, profile.compute):
        span = span_of(profile, first)
        crossed = [k for k in kept if span & (((1 << k[1]) - 1) << k[0])]
        if not span & mask and (not crossed or crossed == [(first, profile.compute)]):
            found.append(first)
    return tuple(found)


@lru_cache(maxsize=4096)
def best_part(profile: MigProfile, mask: int, kept: Kept = ()) -> int:
    """The one that keeps the largest parts possible, the last of equals; -1 where there is none."""
    sizes = [
        replace(profile, compute=size) for size in sorted(_PART_SIZES, reverse=True) if size < profile.instance_compute
    ]

    def merit(first: int) -> tuple[object, ...]:
        after = mask | span_of(profile, first)
        return ((first, profile.compute) in kept, [len(open_parts(size, after, kept)) for size in sizes], first)

    return max(open_parts(profile, mask, kept), key=merit, default=-1)


def state_of(geometry: MigGeometry, places: Iterable[tuple[str, int] | tuple[str, int, int]]) -> MigState:
    """What is taken at these places (profile, start, for parts their first compute slice); profiles that the card does not
    have take nothing."""
    state = MigState()
    for place in places:
        state = state.joined(geometry, *place)
    return state


def legal_starts(geometry: MigGeometry, profile: MigProfile, state: MigState) -> tuple[int, ...]:
    """Starts at which one more instance fits now; for a part: one more instance for it."""
    if state.compute + profile.instance_compute > geometry.compute or (profile.media and state.media):
        return ()
    return tuple(start for start in profile.starts if not state.mask & run_of(profile, start))


def occupied(state: MigState, profile: MigProfile, start: int, part: int = -1) -> MigState:
    """The state after an instance is created at ``start``, or a part in the one that is there."""
    shared = state.shared
    if profile.of:
        known = next((s for s in shared if s.place == (profile.of, start)), None)
        mask = known.mask if known is not None else 0
        first = part if part >= 0 else max(0, best_part(profile, mask))
        mask |= span_of(profile, first)
        if known is not None:
            return state.with_shared(replace(known, mask=mask))
        one = MigShared(profile=profile.of, start=start, mask=mask)
        shared = tuple(sorted((*shared, one), key=lambda s: s.start))
    return MigState(
        mask=state.mask | run_of(profile, start),
        compute=state.compute + profile.instance_compute,
        media=state.media or profile.media,
        shared=shared,
    )


def vacated(state: MigState, profile: MigProfile, start: int, part: int = -1) -> MigState:
    """The state after the instance at ``start``, or the part, is gone; the exact reverse of ``occupied``."""
    shared = state.shared
    if profile.of:
        known = next(s for s in shared if s.place == (profile.of, start))
        mask = known.mask & ~span_of(profile, part)
        if mask:
            return state.with_shared(replace(known, mask=mask))
        shared = tuple(s for s in shared if s is not known)
    return MigState(
        mask=state.mask & ~run_of(profile, start),
        compute=state.compute - profile.instance_compute,
        media=state.media and not profile.media,
        shared=shared,
    )


def open_profiles(geometry: MigGeometry, state: MigState) -> tuple[int, ...]:
    """How open a card is for what comes: the larger, the larger are the profiles that can still be made."""
    return _open_profiles(geometry, replace(state, shared=()) if state.shared else state)


@lru_cache(maxsize=65536)
def _open_profiles(geometry: MigGeometry, state: MigState) -> tuple[int, ...]:
    largest_first = sorted(geometry.profiles, key=lambda profile: (-profile.slices, -profile.compute))
    return tuple(len(legal_starts(geometry, profile, state)) for profile in largest_first)


@lru_cache(maxsize=65536)
def best_start(geometry: MigGeometry, name: str, state: MigState) -> tuple[int, tuple[int, ...]] | None:
    """The start that keeps the largest profiles possible, with what is left open there; None when it does not fit."""
    profile = geometry.profile(name)
    if profile is None:
        return None
    choices = [
        (open_profiles(geometry, occupied(state, profile, start)), start)
        for start in legal_starts(geometry, profile, state)
    ]
    if not choices:
        return None
    left, start = max(choices)
    return start, left
