"""Geometry of MIG: which instances fit on a card, and at which start they do least harm.

Theory of operation. A card has memory slices in a row and a number of compute slices. A profile takes a contiguous
run of memory slices at one of its legal starts, and some compute slices; a "+me" profile also takes the only media
engine. The state of a card is therefore a bitmask of used memory slices, a count of used compute slices and a media
flag. Where several starts are legal, the one is taken that leaves the most valuable set of profiles possible: the
largest profile that still fits is kept first, then the second largest, and so on; the higher start wins a tie, so
that the big profiles' low starts stay open.

Geometry is data: legal starts and sizes from the MIG user guide; names and memory from the same tables. A node
may bring its own profiles, as read from its driver, and these then win.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """One way to cut a card.

    ``starts`` are legal first memory slices; ``memory_mib`` is what the tenant may use; ``slices`` and
    ``compute`` are numbers of slices; ``limit`` the most instances of this profile on one card.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MigState:
    """What is taken of one card: mask of memory slices, compute slices, whether the media engine is gone."""

    mask: int = 0
    compute: int = 0
    media: bool = False


def _run(profile: MigProfile, start: int) -> int:
    return ((1 << profile.slices) - 1) << start


def legal_starts(geometry: MigGeometry, profile: MigProfile, state: MigState) -> tuple[int, ...]:
    """Starts at which one more instance fits now."""
    if state.compute + profile.compute > geometry.compute or (profile.media and state.media):
        return ()
    return tuple(start for start in profile.starts if not state.mask & _run(profile, start))


def occupied(state: MigState, profile: MigProfile, start: int) -> MigState:
    """The state after an instance is created at ``start``."""
    return MigState(
        mask=state.mask | _run(profile, start),
        compute=state.compute + profile.compute,
        media=state.media or profile.media,
    )


def vacated(state: MigState, profile: MigProfile, start: int) -> MigState:
    """The state after the instance at ``start`` is destroyed; the exact reverse of ``occupied``."""
    return MigState(
        mask=state.mask & ~_run(profile, start),
        compute=state.compute - profile.compute,
        media=state.media and not profile.media,
    )


def _open_profiles(geometry: MigGeometry, state: MigState) -> tuple[int, ...]:
    """Numbers of starts left for each profile, largest profile first."""
    largest_first = sorted(geometry.profiles, key=lambda profile: (-profile.slices, -profile.compute))
    return tuple(len(legal_starts(geometry, profile, state)) for profile in largest_first)


@lru_cache(maxsize=65536)
def best_start(geometry: MigGeometry, name: str, state: MigState) -> tuple[int, tuple[int, ...]] | None:
    """The start that keeps the largest profiles possible, with what is left open there; None when it does not fit."""
    profile = geometry.profile(name)
    if profile is None:
        return None
    choices = [
        (_open_profiles(geometry, occupied(state, profile, start)), start)
        for start in legal_starts(geometry, profile, state)
    ]
    if not choices:
        return None
    left, start = max(choices)
    return start, left


def _seven(sizes: Mapping[str, tuple[str, float]]) -> MigGeometry:
    """Eight memory slices, seven compute slices: A100, H100, H200, B200. ``sizes``: shape -> (suffix, GiB usable)."""
    shapes: dict[str, tuple[int, int, tuple[int, ...], int]] = {
        "1g": (1, 1, (0, 1, 2, 3, 4, 5, 6), 7),
        "1g.double": (1, 2, (0, 2, 4, 6), 4),
        "2g": (2, 2, (0, 2, 4), 3),
        "3g": (3, 4, (0, 4), 2),
        "4g": (4, 4, (0,), 1),
        "7g": (7, 8, (0,), 1),
    }
    return MigGeometry(slices=8, compute=7, profiles=tuple(_profiles(shapes, sizes)))


def _four(sizes: Mapping[str, tuple[str, float]]) -> MigGeometry:
    """Four memory slices, four compute slices: A30."""
    shapes: dict[str, tuple[int, int, tuple[int, ...], int]] = {
        "1g": (1, 1, (0, 1, 2, 3), 4),
        "2g": (2, 2, (0, 2), 2),
        "4g": (4, 4, (0,), 1),
    }
    return MigGeometry(slices=4, compute=4, profiles=tuple(_profiles(shapes, sizes)))


def _profiles(
    shapes: Mapping[str, tuple[int, int, tuple[int, ...], int]], sizes: Mapping[str, tuple[str, float]]
) -> Iterable[MigProfile]:
    for shape, (compute, slices, starts, limit) in shapes.items():
        suffix, gib = sizes[shape]
        name = f"{compute}g.{suffix}"
        memory_mib = int(gib * 1024)
        yield MigProfile(name=name, compute=compute, slices=slices, starts=starts, limit=limit, memory_mib=memory_mib)
        if shape == "1g" or (shape == "2g" and compute == 2 and "4g" in shapes and "7g" not in shapes):
            yield MigProfile(
                name=f"{name}+me", compute=compute, slices=slices, starts=starts, limit=1, memory_mib=memory_mib,
                media=True,
            )  # fmt: skip


GEOMETRIES: Mapping[str, MigGeometry] = {
    "A30": _four({"1g": ("6gb", 5.81), "2g": ("12gb", 11.69), "4g": ("24gb", 23.44)}),
    "A100-40": _seven(
        {
            "1g": ("5gb", 4.75), "1g.double": ("10gb", 9.62), "2g": ("10gb", 9.62),
            "3g": ("20gb", 19.5), "4g": ("20gb", 19.5), "7g": ("40gb", 39.25),
        }
    ),
    "A100-80": _seven(
        {
            "1g": ("10gb", 9.5), "1g.double": ("20gb", 19.5), "2g": ("20gb", 19.5),
            "3g": ("40gb", 39.25), "4g": ("40gb", 39.25), "7g": ("80gb", 79.0),
        }
    ),
    "H100": _seven(
        {
            "1g": ("10gb", 9.75), "1g.double": ("20gb", 19.62), "2g": ("20gb", 19.62),
            "3g": ("40gb", 39.5), "4g": ("40gb", 39.5), "7g": ("80gb", 79.25),
        }
    ),
    "H200": _seven(
        {
            "1g": ("18gb", 16.0), "1g.double": ("35gb", 32.5), "2g": ("35gb", 32.5),
            "3g": ("71gb", 69.5), "4g": ("71gb", 69.5), "7g": ("141gb", 140.0),
        }
    ),
    "B200": _seven(
        {
            "1g": ("23gb", 22.0), "1g.double": ("45gb", 44.0), "2g": ("45gb", 44.0),
            "3g": ("90gb", 89.0), "4g": ("90gb", 89.0), "7g": ("180gb", 178.0),
        }
    ),
}  # fmt: skip


def geometry_of(model: str, memory_mib: int) -> MigGeometry | None:
    """Geometry for a device model as drivers and traces name it (``NVIDIA A100-SXM4-80GB``, ``H200``); None: no MIG."""
    name = model.upper()
    if "A100" in name:
        return GEOMETRIES["A100-80" if "80" in name.replace("A100", "") or memory_mib > 50_000 else "A100-40"]
    return next((geometry for key, geometry in GEOMETRIES.items() if key in name), None)
