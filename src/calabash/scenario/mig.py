"""Parsers and writers of the MIG statements in scenario files: geometries, existing instances, positions of requests.

``geometry g1: 8 slices 7 compute, 1g.10gb 1c 1s 0+1+2 x7 9728MiB`` defines the profiles of a device model, and ``cut g1`` after
a device of ``nodes`` refers to it. ``stands n1:0 3g.40gb@4 fixed`` lists the instances on device 0 of node n1. ``on n1:0@4.2``
in a ``has`` statement is the first memory slice on device 0, and the first compute slice of a compute instance.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from calabash.model.mig import MigGeometry, MigInstance, MigPart, MigPlace, MigProfile, is_profile_name
from calabash.model.units import parse_memory_mib
from calabash.scenario.parsing import ScenarioReader, check_names
from calabash.scenario.statements import StandsLine

SLICES_MAX = 64
_COUNTS = re.compile(r"(?P<slices>[0-9]{1,2}) slices (?P<compute>[0-9]{1,2}) compute")
_SIZES = re.compile(r"(?P<compute>[0-9]{1,2})c (?P<slices>[0-9]{1,2})s")
_PLACE = re.compile(r"(?P<start>[0-9]{1,2}|-)(?:\.(?P<part>[0-9]{1,2}))?")
_PROFILE_HINT = "write it like 1g.10gb 1c 1s 0+1+2 x7 9728MiB, optionally followed by media or id14"


def is_amount(word: str) -> bool:
    """Return True if the word is a MIG amount: profile names joined by ``&``, such as ``3g.40gb&1g.10gb``."""
    return all(is_profile_name(name) for name in word.split("&"))


def read_geometry(reader: ScenarioReader, rest: str) -> None:
    name, colon, body = rest.partition(":")
    clauses = [clause.strip() for clause in body.split(",")]
    counts = _COUNTS.fullmatch(clauses[0])
    if not colon or counts is None or len(clauses) > SLICES_MAX:
        raise reader.fail(
            f"{rest[:80]!r} is not a MIG geometry", hint="write it like geometry g1: 8 slices 7 compute, 1g.10gb ..."
        )
    check_names(reader, (name.strip(),))
    reader.geometries[name.strip()] = MigGeometry(
        slices=int(counts["slices"]),
        compute=int(counts["compute"]),
        profiles=tuple(_profile(reader, clause) for clause in clauses[1:]),
    )


def _profile(reader: ScenarioReader, clause: str) -> MigProfile:
    match clause.split():
        case [name, compute, slices, starts, limit, memory, *more] if (
            is_profile_name(name)
            and (sizes := _SIZES.fullmatch(f"{compute} {slices}")) is not None
            and re.fullmatch(r"[0-9]{1,2}(\+[0-9]{1,2})*", starts)
            and re.fullmatch(r"x[0-9]{1,2}", limit)
            and all(re.fullmatch(r"media|id[0-9]{1,4}", word) for word in more)
        ):
            return MigProfile(
                id=next((int(word[2:]) for word in more if word.startswith("id")), -1),
                name=name,
                compute=int(sizes["compute"]),
                slices=int(sizes["slices"]),
                starts=tuple(map(int, starts.split("+"))),
                limit=int(limit[1:]),
                memory_mib=parse_memory_mib(memory),
                media="media" in more,
            )
    raise reader.fail(f"{clause!r} is not a MIG profile", hint=_PROFILE_HINT)


def read_stands(reader: ScenarioReader, rest: str) -> None:
    where, _, body = rest.partition(" ")
    node, _, device = where.partition(":")
    check_names(reader, (node,))
    if not device.isdecimal() or len(device) > 2:
        raise reader.fail(f"{where!r} is not a device", hint="write it like stands n1:0 3g.40gb@4 fixed, 1g.10gb@0")
    instances = tuple(_instance(reader, clause.strip()) for clause in body.split(",") if clause.strip())
    reader.add(StandsLine(node=node, device=int(device), instances=instances))


def _instance(reader: ScenarioReader, clause: str) -> MigInstance:
    place, *words = clause.split()
    profile, _, start = place.partition("@")
    kept = [word for word in words if re.fullmatch(r"[0-9]{1,2}:[0-9]{1,2}", word)]
    if (
        not is_profile_name(profile)
        or not re.fullmatch(r"[0-9]{1,2}", start)
        or set(words) - {"fixed", "foreign", *kept}
    ):
        raise reader.fail(
            f"{clause!r} is not a MIG instance",
            hint="write it like 3g.40gb@4, optionally followed by fixed, foreign, or 0:2 for a compute instance",
        )
    parts = tuple(
        MigPart(start=int(first), compute=int(size), kept=True) for first, size in (w.split(":") for w in kept)
    )
    return MigInstance(
        profile=profile, start=int(start), fixed="fixed" in words, foreign="foreign" in words, parts=parts
    )


def places_of(reader: ScenarioReader, text: str) -> tuple[tuple[MigPlace, ...], ...]:
    """Parse devices with MIG positions, and return the positions on each device; () if none are given.

    ``0@4.2+1@0&6`` gives one position on device 0 (memory slice 4, compute slice 2) and two on device 1 (memory slices
    0 and 6). Raises ScenarioError.
    """
    found: list[tuple[MigPlace, ...]] = []
    for device in text.split("+"):
        _, at, places = device.partition("@")
        if at:
            matches = [_PLACE.fullmatch(place) for place in places.split("&")]
            if not all(matches):
                raise reader.fail(
                    f"{places!r} is not a MIG position",
                    hint="write 0@4, 0@4.2 for a compute instance, or 0@4&6 for two instances",
                )
            found.append(
                tuple(MigPlace(int(m["start"].replace("-", "-1")), int(m["part"] or -1)) for m in matches if m)
            )
    return tuple(found)


def geometry_lines(geometries: Mapping[MigGeometry, str]) -> list[str]:
    """Return the ``geometry`` statements that define some geometries.

    Args:
        geometries: name by geometry.
    """
    return [
        f"geometry {name}: {geometry.slices} slices {geometry.compute} compute, "
        + ", ".join(_profile_text(p) for p in geometry.profiles)
        for geometry, name in geometries.items()
    ]


def _profile_text(p: MigProfile) -> str:
    starts = "+".join(map(str, p.starts))
    more = (" media" if p.media else "") + (f" id{p.id}" if p.id >= 0 else "")
    return f"{p.name} {p.compute}c {p.slices}s {starts} x{p.limit} {p.memory_mib}MiB{more}"


def stands_line(node: str, device: int, instances: Iterable[MigInstance]) -> str:
    """Return the ``stands`` statement that lists the MIG instances on a device.

    Args:
        node: name of the node. device: number of the device on the node.
    """
    clauses = []
    for instance in instances:
        words = [f"{instance.profile}@{instance.start}"]
        words += ["fixed"] * instance.fixed + ["foreign"] * instance.foreign
        words += [f"{start}:{compute}" for start, compute in instance.kept]
        clauses.append(" ".join(words))
    return f"stands {node}:{device} {', '.join(clauses)}"


def places_text(places: Iterable[MigPlace]) -> str:
    """Return the MIG positions after a device number, like ``@4.2``; "" if there are none."""
    words = [("-" if p.start < 0 else str(p.start)) + (f".{p.part}" if p.part >= 0 else "") for p in places]
    return "@" + "&".join(words) if words else ""
