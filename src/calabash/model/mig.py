"""Geometry of MIG: which instances fit on a card, and at which start they do least harm.

Theory of operation. A card has memory slices in a row and a number of compute slices. A profile takes a contiguous
run of memory slices at one of its legal starts, and some compute slices; a "+me" profile also takes the only media
engine. The state of a card is therefore a bitmask of used memory slices, a count of used compute slices and a media
flag. Where several starts are legal, the one is taken that leaves the most valuable set of profiles possible: the
largest profile that still fits is kept first, then the second largest, and so on; the higher start wins a tie, so
that the big profiles' low starts stay open.

Geometry is data and comes from the driver of the card. This is the one place where it is reckoned with: the
scheduler, the sharing mode and the node's executor all ask here, and a test holds it against what NVML accepts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

_PROFILE_NAME = re.compile(r"(?:[1-9]c\.)?[1-9][0-9]?g\.[1-9][0-9]{0,3}gb(?:[+-][a-z]{2,8}(?:\.[a-z]{2,8})?){0,2}")


def is_profile_name(text: str) -> bool:
    """Whether it is written like the name of a profile: ``1g.10gb``, ``1g.10gb+me``, ``1c.3g.40gb``."""
    return _PROFILE_NAME.fullmatch(text) is not None


def split_profile(name: str) -> tuple[int, str]:
    """Compute slices and GPU instance of a name: ``1c.3g.40gb`` is one slice of a ``3g.40gb``, ``3g.40gb`` is 0: all."""
    slices, dot, profile = name.partition("c.")
    return (int(slices), profile) if dot and slices.isdigit() else (0, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """One way to cut a card.

    ``id`` is the driver's number of it, -1 where no driver was asked. ``starts`` are legal first memory slices;
    ``memory_mib`` is what the tenant may use; ``slices`` counts memory slices and ``compute`` compute slices;
    ``limit`` is the most instances of this profile on one card; ``media``: it has the only media engine.
    """

    id: int = -1
    name: str
    compute: int
    slices: int
    starts: tuple[int, ...]
    limit: int
    memory_mib: int
    media: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MigGeometry:
    """All profiles of a device model; ``slices`` and ``compute`` are what one card has."""

    slices: int
    compute: int
    profiles: tuple[MigProfile, ...]

    def profile(self, name: str) -> MigProfile | None:
        """The profile of that name, or None."""
        return next((profile for profile in self.profiles if profile.name == name), None)

    def only_at(self, start: int) -> MigGeometry:
        """The same card as if new instances could begin there only."""
        return replace(
            self, profiles=tuple(replace(p, starts=(start,) if start in p.starts else ()) for p in self.profiles)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MigState:
    """What is taken of one card: mask of memory slices, compute slices, whether the media engine is gone."""

    mask: int = 0
    compute: int = 0
    media: bool = False

    def joined(self, geometry: MigGeometry, name: str, start: int) -> MigState:
        """With one more instance; a profile that the card does not have takes nothing."""
        profile = geometry.profile(name)
        return occupied(self, profile, start) if profile is not None else self


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


def state_of(geometry: MigGeometry, places: Iterable[tuple[str, int]]) -> MigState:
    """What instances at these places take; profiles that the card does not have take nothing."""
    state = MigState()
    for name, start in places:
        state = state.joined(geometry, name, start)
    return state


def legal_starts(geometry: MigGeometry, profile: MigProfile, state: MigState) -> tuple[int, ...]:
    """Starts at which one more instance fits now."""
    if state.compute + profile.compute > geometry.compute or (profile.media and state.media):
        return ()
    return tuple(start for start in profile.starts if not state.mask & run_of(profile, start))


def occupied(state: MigState, profile: MigProfile, start: int) -> MigState:
    """The state after an instance is created at ``start``."""
    return MigState(
        mask=state.mask | run_of(profile, start),
        compute=state.compute + profile.compute,
        media=state.media or profile.media,
    )


def vacated(state: MigState, profile: MigProfile, start: int) -> MigState:
    """The state after the instance at ``start`` is destroyed; the exact reverse of ``occupied``."""
    return MigState(
        mask=state.mask & ~run_of(profile, start),
        compute=state.compute - profile.compute,
        media=state.media and not profile.media,
    )


@lru_cache(maxsize=65536)
def open_profiles(geometry: MigGeometry, state: MigState) -> tuple[int, ...]:
    """How open a card is for what comes: the larger, the larger are the profiles that can still be made."""
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
