"""JSON patches (RFC 6902) as small as the change they make. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Operation = dict[str, Any]


def pointer(*steps: str) -> str:
    """A JSON pointer; ``/`` and ``~`` in names are escaped."""
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)


def put(path: str, value: Any) -> Operation:
    """Set a member, whether it is there or not."""
    return {"op": "add", "path": path, "value": value}


def put_map(path: str, present: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> list[Operation]:
    """Make the members of a map these, where they are not."""
    if present is None:
        return [put(path, dict(wanted))] if wanted else []
    return [put(path + pointer(name), value) for name, value in wanted.items() if present.get(name) != value]


def replace_map(path: str, present: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> list[Operation]:
    """Make a map this one, member for member."""
    return [] if dict(present or {}) == dict(wanted) else [put(path, dict(wanted))]


def append(path: str, present: list[Any] | None, value: Any) -> Operation:
    """Add to a list that may not be there."""
    return put(f"{path}/-", value) if present is not None else put(path, [value])


def remove(path: str) -> Operation:
    """Take away what is there."""
    return {"op": "remove", "path": path}
