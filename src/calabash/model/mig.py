"""Geometry of MIG: legal positions of GPU instances and compute instances on a device, and the best of them.

Theory of operation. A device has a row of memory slices and a number of compute slices. A GPU instance of a profile occupies a
contiguous run of memory slices at one of the profile's legal starts, and some compute slices. A "+me" profile also occupies the
only media engine. The state of a device is therefore a bitmask of used memory slices, a count of used compute slices and a
media flag. If several starts are legal, the best start keeps the largest profile possible, then the second largest, and so on.
The higher start wins a tie, so that the low starts of the large profiles stay free.

A GPU instance can be divided into compute instances: ``1c.3g.40gb`` has one of the three compute slices of a ``3g.40gb``.
The compute instances of one GPU instance have separate compute slices and use its memory together. A compute instance begins at
a multiple of its size, as NVML places them. The GPU instance is occupied with its first compute instance and freed with its
last. In names of this code a "part" is a compute instance that does not have all compute slices of its GPU instance.

The geometry is data from the driver of the device. The scheduler, the sharing mode and the node agent all compute with this
module; a test compares it with the placements that NVML accepts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

_PART_SIZES = frozenset({1, 2, 3, 4, 6})  # sizes of compute instances that NVML supports, besides all slices
_PROFILE_NAME = re.compile(r"(?:[1-9]c\.)?[1-9][0-9]?g\.[1-9][0-9]{0,3}gb(?:[+-][a-z]{2,8}(?:\.[a-z]{2,8})?){0,2}")


def is_profile_name(text: str) -> bool:
    """Return True if the text has the syntax of a profile name: ``1g.10gb``, ``1g.10gb+me``, ``1c.3g.40gb``."""
    return _PROFILE_NAME.fullmatch(text) is not None


def split_profile(name: str) -> tuple[int, str]:
    """Split a profile name into compute slices and GPU instance profile.

    ``1c.3g.40gb`` gives ``(1, "3g.40gb")``. ``3g.40gb`` gives ``(0, "3g.40gb")``, where 0 means all compute slices.
    """
    slices, dot, profile = name.partition("c.")
    return (int(slices), profile) if dot and slices.isdigit() else (0, name)


class MigPlace(NamedTuple):
    """Position of an instance on a device.

    ``start`` is the first memory slice. ``part`` is the first compute slice of a compute instance in its GPU instance; -1 for a
    whole GPU instance.
    """

    start: int
    part: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """Profile of a GPU instance or of a compute instance.

    Args:
        id: profile number of the driver; -1 if it was not read from a driver.
        compute: number of compute slices.
        slices: number of memory slices.
        starts: legal first memory slices.
        limit: most GPU instances of this profile on one device.
        memory_mib: memory that the tenant may use; for a compute instance its proportional share of the GPU instance's memory.
        media: its instances have the only media engine of the device.
        of: profile of the GPU instance that contains a compute instance; "" for the profile of a GPU instance.
        whole: number of compute slices of that GPU instance; 0 for the profile of a GPU instance.

    The other fields of the profile of a compute instance are those of the profile of its GPU instance.
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
        """Name of the profile of the GPU instance, also for a compute instance."""
        return self.of or self.name

    @property
    def instance_compute(self) -> int:
        """Number of compute slices of the GPU instance, also for a compute instance."""
        return self.whole or self.compute


@dataclass(frozen=True, slots=True, kw_only=True)
class MigGeometry:
    """Profiles of a device model, and its numbers of memory slices (``slices``) and compute slices (``compute``).

    New instances are possible only at the position ``only``; None: at all positions.
    """

    slices: int
    compute: int
    profiles: tuple[MigProfile, ...]
    only: MigPlace | None = None

    def profile(self, name: str) -> MigProfile | None:
        """Return the profile of a GPU instance or compute instance by its name; None if the device does not have it.

        A compute instance with all compute slices is the GPU instance itself.
        """
        found = next((profile for profile in self.profiles if profile.name == name), None)
        if found is None and "c." in name:
            compute, base = split_profile(name)
            whole = self.profile(base) if compute else None
            return _part_of(whole, compute) if whole is not None else None
        return found

    def only_at(self, place: MigPlace) -> MigGeometry:
        """Return a copy of the geometry in which new instances are possible at one position only."""
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
"""Compute instances of a GPU instance that must not be destroyed: first compute slice and size of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigShared:
    """GPU instance that is divided into compute instances.

    ``start`` is its first memory slice, ``mask`` the bitmask of its used compute slices. ``kept`` are its compute
    instances that must not be destroyed.
    """

    profile: str
    start: int
    mask: int
    kept: Kept = ()

    @property
    def place(self) -> tuple[str, int]:
        """Profile name and first memory slice."""
        return self.profile, self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class MigState:
    """Used resources of one device.

    Args:
        mask: used memory slices, as a bitmask.
        compute: number of used compute slices.
        media: the media engine is used.
        shared: the used GPU instances that are divided into compute instances.
    """

    mask: int = 0
    compute: int = 0
    media: bool = False
    shared: tuple[MigShared, ...] = ()

    def joined(self, geometry: MigGeometry, name: str, start: int, part: int = -1) -> MigState:
        """Return the state after ``with_instance`` with the profile of this name.

        Returns the state unchanged if the device does not have the profile.
        """
        profile = geometry.profile(name)
        return with_instance(self, profile, start, part) if profile is not None else self

    def with_shared(self, shared: MigShared) -> MigState:
        """Return the state with the entry of this GPU instance in ``shared`` replaced or added."""
        others = (s for s in self.shared if s.place != shared.place)
        return replace(self, shared=tuple(sorted((*others, shared), key=lambda s: s.start)))


@dataclass(frozen=True, slots=True, kw_only=True)
class MigPart:
    """Existing compute instance in a GPU instance; programs see it as a device.

    ``start`` is its first compute slice, ``compute`` the number of its compute slices. If ``kept`` is True, the product
    did not create it and must not destroy it.
    """

    start: int
    compute: int
    uuid: str = ""
    kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """Existing GPU instance on a device.

    Args:
        uuid: UUID of its first MIG device.
        start: its first memory slice.
        fixed: it existed before the product managed the device, or a MIG layout of an administrator contains it. It can
            be allocated, and is never destroyed.
        foreign: unmanaged processes use it.
        parts: its compute instances.
    """

    profile: str
    start: int
    uuid: str = ""
    fixed: bool = False
    foreign: bool = False
    parts: tuple[MigPart, ...] = ()

    @property
    def kept(self) -> Kept:
        """MIG compute instances of this GPU instance that must not be destroyed."""
        return tuple((part.start, part.compute) for part in self.parts if part.kept)

    @property
    def stays(self) -> bool:
        """True if the product must not destroy the GPU instance now."""
        return self.fixed or self.foreign

    @property
    def place(self) -> tuple[str, int]:
        """Profile name and first memory slice."""
        return self.profile, self.start


def memory_mask(profile: MigProfile, start: int) -> int:
    """Return the memory slices of a GPU instance at ``start``, as a bitmask."""
    return ((1 << profile.slices) - 1) << start


def compute_mask(profile: MigProfile, part: int) -> int:
    """Return the compute slices of a compute instance that begins at slice ``part``, as a bitmask of its GPU instance."""
    return ((1 << profile.compute) - 1) << part


def free_compute_slices(profile: MigProfile, mask: int, kept: Kept = ()) -> tuple[int, ...]:
    """Return the compute slices at which one more compute instance of the profile can begin in a GPU instance.

    Args:
        mask: used compute slices of the GPU instance.
        kept: its compute instances that must not be destroyed. Such a compute instance can be reused, but not overlapped.
    """
    found = []
    for first in range(0, profile.instance_compute - profile.compute + 1, profile.compute):
        span = compute_mask(profile, first)
        crossed = [k for k in kept if span & (((1 << k[1]) - 1) << k[0])]
        if not span & mask and (not crossed or crossed == [(first, profile.compute)]):
            found.append(first)
    return tuple(found)


@lru_cache(maxsize=4096)
def best_compute_slice(profile: MigProfile, mask: int, kept: Kept = ()) -> int:
    """Return the best of ``free_compute_slices``, or -1 if it is empty.

    An existing compute instance of the same size is reused first. Otherwise the best position keeps the largest compute
    instances possible; the highest position wins a tie.
    """
    sizes = [
        replace(profile, compute=size) for size in sorted(_PART_SIZES, reverse=True) if size < profile.instance_compute
    ]

    def merit(first: int) -> tuple[object, ...]:
        after = mask | compute_mask(profile, first)
        return (
            (first, profile.compute) in kept,
            [len(free_compute_slices(size, after, kept)) for size in sizes],
            first,
        )

    return max(free_compute_slices(profile, mask, kept), key=merit, default=-1)


def mig_state(geometry: MigGeometry, places: Iterable[tuple[str, int] | tuple[str, int, int]]) -> MigState:
    """Return the state of a device with instances at these positions.

    Args:
        places: profile name, first memory slice, and for compute instances the first compute slice. Profiles that the device
            does not have are skipped.
    """
    state = MigState()
    for place in places:
        state = state.joined(geometry, *place)
    return state


def legal_starts(geometry: MigGeometry, profile: MigProfile, state: MigState) -> tuple[int, ...]:
    """Return the memory slices at which one more GPU instance of the profile can start.

    For the profile of a compute instance these are the possible starts of a new GPU instance that would contain it.
    """
    if state.compute + profile.instance_compute > geometry.compute or (profile.media and state.media):
        return ()
    return tuple(start for start in profile.starts if not state.mask & memory_mask(profile, start))


def with_instance(state: MigState, profile: MigProfile, start: int, part: int = -1) -> MigState:
    """Return the state after an instance of the profile is created in a device.

    A GPU instance is created at the memory slice ``start``. A compute instance is created at the compute slice ``part``
    (-1: the best one) of the divided GPU instance at ``start``; if there is none, a GPU instance is created there for
    it.
    """
    shared = state.shared
    if profile.of:
        known = next((s for s in shared if s.place == (profile.of, start)), None)
        mask = known.mask if known is not None else 0
        first = part if part >= 0 else max(0, best_compute_slice(profile, mask))
        mask |= compute_mask(profile, first)
        if known is not None:
            return state.with_shared(replace(known, mask=mask))
        one = MigShared(profile=profile.of, start=start, mask=mask)
        shared = tuple(sorted((*shared, one), key=lambda s: s.start))
    return MigState(
        mask=state.mask | memory_mask(profile, start),
        compute=state.compute + profile.instance_compute,
        media=state.media or profile.media,
        shared=shared,
    )


def without_instance(state: MigState, profile: MigProfile, start: int, part: int = -1) -> MigState:
    """Return the state after the GPU instance at ``start``, or its compute instance at ``part``, is destroyed.

    This reverses ``with_instance``.
    """
    shared = state.shared
    if profile.of:
        known = next(s for s in shared if s.place == (profile.of, start))
        mask = known.mask & ~compute_mask(profile, part)
        if mask:
            return state.with_shared(replace(known, mask=mask))
        shared = tuple(s for s in shared if s is not known)
    return MigState(
        mask=state.mask & ~memory_mask(profile, start),
        compute=state.compute - profile.instance_compute,
        media=state.media and not profile.media,
        shared=shared,
    )


def open_profiles(geometry: MigGeometry, state: MigState) -> tuple[int, ...]:
    """Return for every profile the number of memory slices at which one more instance can start, largest profile first.

    Results are compared as tuples: of two states, the one with the greater result keeps larger profiles possible.
    """
    return _open_profiles(geometry, replace(state, shared=()) if state.shared else state)


@lru_cache(maxsize=65536)
def _open_profiles(geometry: MigGeometry, state: MigState) -> tuple[int, ...]:
    largest_first = sorted(geometry.profiles, key=lambda profile: (-profile.slices, -profile.compute))
    return tuple(len(legal_starts(geometry, profile, state)) for profile in largest_first)
