"""Parsers and writers of the network topology in scenario files: levels, domains of nodes, and requests of gangs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from calabash.scenario.parsing import ScenarioReader, check_names
from calabash.sched.topology import NODE_LEVEL, GangTopology, check_levels

_HINT = "write topology required=rack, preferred=rack, slice=rack:4 or group=NAME"


def read_levels(reader: ScenarioReader, rest: str) -> None:
    """Parse the names of the levels, outermost first."""
    if reader.levels:
        raise reader.fail("the levels are given twice", hint="write one line: levels block rack")
    levels = tuple(rest.split())
    check_names(reader, levels)
    check_levels(levels)
    if not levels:
        raise reader.fail("levels has no name", hint="write levels block rack")
    reader.levels = levels


def read_path(reader: ScenarioReader, text: str) -> tuple[str, ...]:
    """Parse the domains of a node, such as ``block1/rack3``, outermost first."""
    path = tuple(text.split("/"))
    check_names(reader, path)
    if len(path) > len(reader.levels):
        raise reader.fail(
            f"topology {text!r} has {len(path)} domains, and there are {len(reader.levels)} levels",
            hint="name the levels before the nodes: levels block rack",
        )
    return path


def read_topology(reader: ScenarioReader, words: list[str]) -> GangTopology:
    """Parse the words of a topology request, such as ``required=block slice=rack:4``."""
    fields: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if key not in ("required", "preferred", "slice", "group") or not equals or key in fields:
            raise reader.fail(f"{word!r} is not part of a topology request", hint=_HINT)
        if key == "slice":
            level, _, size = value.partition(":")
            if not size.isdecimal():
                raise reader.fail(f"slice {value!r} is not a level and a size", hint="write slice=rack:4")
            fields.update(slice="", slice_level=level, slice_size=int(size))
        else:
            fields[key] = value
    fields.pop("slice", None)
    for key in ("required", "preferred", "slice_level"):
        level = fields.get(key, "")
        if level and level not in (*reader.levels, NODE_LEVEL):
            known = ", ".join((*reader.levels, NODE_LEVEL))
            raise reader.fail(f"level {level!r} does not exist", hint=f"use one of: {known}")
    return GangTopology(**fields)


def topology_text(topology: GangTopology, name: Callable[[str], str]) -> str:
    """Return a topology request as a clause of a scenario file; ``name`` replaces characters that names cannot contain."""
    words = ["topology"]
    fields: Mapping[str, str] = {
        "required": topology.required,
        "preferred": topology.preferred,
        "group": topology.group,
    }
    words += [f"{key}={name(value)}" for key, value in fields.items() if value]
    if topology.slice_level:
        words.append(f"slice={name(topology.slice_level)}:{topology.slice_size}")
    return " ".join(words)
