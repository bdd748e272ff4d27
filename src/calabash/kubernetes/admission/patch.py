"""JSON patches (RFC 6902) as small as the change they make. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Operation = dict[str, Any]


def pointer(*steps: str) -> str:
    """Return a JSON pointer; ``/`` and ``~`` in names are escaped."""
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)


def put(path: str, value: Any) -> Operation:
    """Return the operation that sets the value at a path, whether or not the path has a value."""
    return {"op": "add", "path": path, "value": value}


def put_map(path: str, present: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> list[Operation]:
    """Return the operations that give a map the entries of ``wanted``; entries that are equal already are left out."""
    if present is None:
        return [put(path, dict(wanted))] if wanted else []
    return [put(path + pointer(name), value) for name, value in wanted.items() if present.get(name) != value]


def replace_map(path: str, present: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> list[Operation]:
    """Return the operation that replaces a map by ``wanted``, or an empty list if the two are equal already."""
    return [] if dict(present or {}) == dict(wanted) else [put(path, dict(wanted))]


def append(path: str, present: list[Any] | None, value: Any) -> Operation:
    """Return the operation that appends to a list, which is created if it is None."""
    return put(f"{path}/-", value) if present is not None else put(path, [value])


def remove(path: str) -> Operation:
    """Return the operation that removes the value at a path. The path must exist."""
    return {"op": "remove", "path": path}
