"""The files that are kept of the objects of a failed test.

A fixture value that writes files has a method ``evidence``. It is found as a fixture value itself, in a container, in the
attributes of a fixture value, and in the variables of a factory function.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Protocol

_OBJECTS_MAX = 500
_ITEMS_MAX = 100
_DEPTH_MAX = 2
_FOREIGN = frozenset({*sys.stdlib_module_names, "_pytest", "hypothesis", "playwright", "pluggy", "pytest", "xdist"})

Sources = Mapping[str, Sequence[Path]]


class Evidence(Protocol):
    """An object of a test that writes files, such as a daemon with its home directory."""

    def evidence(self) -> Iterable[Path]:
        """Return files, and directories that are searched for logs, journals and settings. A path need not exist."""


@functools.singledispatch
def evidence_of(value: object) -> Iterable[Path]:
    """Return the files and directories of an object. ``evidence_of.register`` adds a class of the product."""
    method = getattr(type(value), "evidence", None)
    return method(value) if isinstance(method, types.FunctionType) else ()


def sources_of(values: Mapping[str, object]) -> dict[str, list[Path]]:
    """Return the paths of all objects with evidence in fixture values, by a label for the copies."""
    found: dict[str, list[Path]] = {}
    for label, value in _reachable(values):
        try:
            paths = [Path(path) for path in evidence_of.dispatch(type(value))(value)]
        except Exception:  # an object that is half made, or already closed
            continue
        if paths:
            found[label] = paths
    temporary = values.get("tmp_path")
    if isinstance(temporary, Path):
        found["tmp_path"] = [temporary]
    return found


def _reachable(values: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield fixture values and the objects inside them, each once, nearest first, with a label made of names."""
    waiting = [(name, value, 0) for name, value in values.items()]
    seen: set[int] = set()
    for label, value, depth in waiting:  # grows meanwhile
        if id(value) in seen or len(seen) >= _OBJECTS_MAX or isinstance(value, str | bytes | int | float | Path | type):
            continue
        seen.add(id(value))
        yield label, value
        with suppress(Exception):  # an object of unusual behaviour; it is not worth a report
            is_container = isinstance(value, Mapping | list | tuple | set | frozenset)
            if is_container or depth < _DEPTH_MAX:
                inner = depth if is_container else depth + 1
                waiting += [(f"{label}.{name}", part, inner) for name, part in _parts(value)]


def _parts(value: object) -> list[tuple[str, object]]:
    """Return the items of a container, the variables of a function, or the attributes of an object, with their names."""
    if isinstance(value, Mapping):
        return [(str(name), item) for name, item in islice(value.items(), _ITEMS_MAX)]
    if isinstance(value, list | tuple | set | frozenset):
        return [(str(number), item) for number, item in enumerate(islice(value, _ITEMS_MAX))]
    if isinstance(value, types.MethodType):
        return [("self", value.__self__)]
    if isinstance(value, types.FunctionType):
        return list(inspect.getclosurevars(value).nonlocals.items())
    if isinstance(value, types.ModuleType) or type(value).__module__.partition(".")[0] in _FOREIGN:
        return []
    found = dict(getattr(value, "__dict__", {}))
    for slot in [slot for kind in type(value).__mro__ for slot in kind.__dict__.get("__slots__", ())]:
        with suppress(AttributeError):
            found[slot] = object.__getattribute__(value, slot)
    return list(found.items())


# The plug-in's functions that copy the files of an object at once; empty outside pytest.
rescuers: list[Callable[[object, BaseException], None]] = []


def rescue(value: object, error: BaseException | None) -> None:
    """Keep the files of an object that is closed because of an error, if the test that runs now fails.

    Args:
        value: an object with evidence, or one that holds such objects.
        error: the exception, as ``__exit__`` has it; without one, nothing is kept.
    """
    if error is not None:
        for copy in rescuers:
            copy(value, error)
