"""Read fields of manifests by path. Manifests are untrusted: any field may have any type."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from calabash.model.errors import CalabashError

PODS_MAX = 100_000
_TEXT_MAX = 253


def field(tree: Any, path: str) -> Any:
    """Return the value at a path; None if it is absent. The path "" is the tree itself."""
    for segment in path.split(".") if path else ():
        if isinstance(tree, Mapping):
            tree = tree.get(segment)
        elif isinstance(tree, list) and segment.isascii() and segment.isdecimal() and int(segment) < len(tree):
            tree = tree[int(segment)]
        else:
            return None
    return tree


class Place:
    """An object within a manifest, from which paths begin.

    Args:
        root: the manifest.
        here: the object.
        name: path of the object within the manifest, for messages; "" for the manifest.
    """

    def __init__(self, root: Any, here: Any, name: str = "") -> None:
        self.root = root
        self.here = here
        self.name = name

    def value(self, path: str) -> Any:
        """Return the value at a path; None if it is absent."""
        return field(self.root, path[2:]) if path.startswith("$.") else field(self.here, path)

    def shown(self, path: str) -> str:
        """Return the path from the manifest, for messages."""
        if path.startswith("$."):
            return path[2:]
        return ".".join(filter(None, (self.name, path)))

    def count(self, path: str, default: int) -> int:
        """Return the number at a path; ``default`` if it is absent.

        Raises:
            CalabashError: the value is not a number of pods.
        """
        found = self.value(path) if path else None
        return default if found is None else count(found, self.shown(path))

    def first_count(self, paths: Iterable[str]) -> int | None:
        """Return the number at the first path that is present; None if all are absent."""
        for path in paths:
            found = self.value(path)
            if found is not None:
                return count(found, self.shown(path))
        return None

    def true(self, path: str) -> bool:
        """Return True if the value at a path is true."""
        return self.value(path) is True

    def text(self, path: str) -> str:
        """Return the text at a path; "" if it is absent or no text. Numbers are written as text."""
        found = self.value(path) if path else None
        if isinstance(found, int) and not isinstance(found, bool):
            return str(found)[:_TEXT_MAX]
        return found[:_TEXT_MAX] if isinstance(found, str) else ""


def count(found: Any, what: str) -> int:
    """Return a number of pods, groups or members.

    Raises:
        CalabashError: it is not a whole number from 0 to PODS_MAX.
    """
    if not isinstance(found, int) or isinstance(found, bool):
        raise CalabashError(f"{what} is {_shown(found)}, not a whole number", hint="write a number without quotes")
    if not 0 <= found <= PODS_MAX:
        raise CalabashError(f"{what} is {_shown(found)}, out of range", hint=f"from 0 to {PODS_MAX}")
    return found


def written_count(text: str, what: str) -> int:
    """Return the number that an annotation states. Raises CalabashError if it is not from 1 to PODS_MAX."""
    if re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) is None or not 1 <= int(text) <= PODS_MAX:
        raise CalabashError(f"{what} is {_shown(text)}", hint=f"write a whole number from 1 to {PODS_MAX}")
    return int(text)


def labelled_number(text: str) -> int | None:
    """Return the number that a label or an annotation has; None if it is not a whole number of at most six digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else None


def marks(tree: Any, kind: str) -> dict[str, str]:
    """Return the labels or annotations of a manifest or a pod template, without values that are no text.

    Args:
        tree: the manifest.
        kind: ``labels`` or ``annotations``.
    """
    found = field(tree, f"metadata.{kind}")
    if not isinstance(found, Mapping):
        return {}
    return {name: value for name, value in found.items() if isinstance(name, str) and isinstance(value, str)}


def _shown(found: Any) -> str:
    text = repr(found) if isinstance(found, str | int | float | bool) else type(found).__name__
    return text if len(text) <= 40 else f"{text[:40]}..."
