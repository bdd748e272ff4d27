"""Marked names of objects in messages, so that a message can be redacted for each reader.

Explanations, events and errors are written once and read by users with different visibility. A name that some readers may not
see is put into a text by ``mention`` only. ``render`` decides for each marked name, by its kind and value, if this reader sees
it. The other words of a text are never compared with names. A forged mark reveals nothing, because an unknown name is redacted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import StrEnum

ANOTHERS = "(another's)"
_BEGIN, _BETWEEN, _END = "\x02", "\x1f", "\x03"
# The end of a text ends a mention too: a truncated text does not show the beginning of a redacted name.
_MENTION = re.compile(f"{_BEGIN}([a-z]*)(?:{_BETWEEN}([^{_BEGIN}{_BETWEEN}{_END}]*))?(?:{_END}|$)")
_RUN = re.compile(f"(?:{_MENTION.pattern})(?:, {_MENTION.pattern})*")
_MARKS = str.maketrans("", "", _BEGIN + _BETWEEN + _END)


class Mentioned(StrEnum):
    """Kinds of objects whose names some readers may not see."""

    REQUEST = "request"  # a waiting request or an allocation, by its ID
    QUEUE = "queue"
    TENANT = "tenant"
    USER = "user"
    PROCESS = "process"  # a description of an unmanaged process
    NETWORK = "network"  # an object of a tenant's network, by its path
    POD = "pod"  # a pod of a cluster, NAMESPACE/NAME
    BUDGET = "budget"  # a disruption budget of a cluster, NAMESPACE/NAME


def mention(kind: Mentioned, name: str) -> str:
    """Return the name with control characters that mark it as a name of this kind, for use anywhere in a text.

    An empty name gives an empty string.
    """
    return f"{_BEGIN}{kind}{_BETWEEN}{name.translate(_MARKS)}{_END}" if name else ""


def mentions(kind: Mentioned, names: Iterable[str]) -> str:
    """Return the names, each marked as by ``mention``, separated by commas."""
    return ", ".join(mention(kind, name) for name in names)


def render(text: str, shown: Callable[[str, str], bool]) -> str:
    """Return the text for one reader.

    Args:
        shown: returns True if the reader may see an object, given the kind and the name. Other names become ``ANOTHERS``.
    """
    if _BEGIN in text:
        text = _MENTION.sub(lambda found: (found[2] or "") if shown(found[1], found[2] or "") else ANOTHERS, text)
    return _without_marks(text)


def _without_marks(text: str) -> str:
    """Return the text without control characters that belong to no mention.

    Most texts have no marks, and searching for a mark is faster than translating the text.
    """
    return text.translate(_MARKS) if _BEGIN in text or _BETWEEN in text or _END in text else text


def unmarked(text: str) -> str:
    """Return the text with all names and without marks, for logs and administrators."""
    return render(text, lambda _kind, _name: True)


def redacted(text: str) -> str:
    """Return the text with all names redacted, for unknown readers."""
    return render(text, lambda _kind, _name: False)


def render_lists(text: str, words: Callable[[list[tuple[str, str]]], str]) -> str:
    """Return the text for one reader, replacing each list of mentions at once.

    Args:
        words: returns the text for one list, given the kind and name of each mention in it. It sees the whole list, so
            that it can write the number of redacted names. A list is the result of ``mentions``; a single mention is a
            list of one.
    """
    if _BEGIN in text:
        text = _RUN.sub(lambda run: words([(m[1], m[2] or "") for m in _MENTION.finditer(run[0])]), text)
    return _without_marks(text)
