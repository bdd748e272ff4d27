"""Names of objects inside texts, marked with the kind of the object.

Texts for people (explanations, causes, events, errors) are made once and read by users with different rights. A name of an
object that a reader may not see enters a text through ``mention`` only, so the reader's text is made from the kind and the
name: ``render`` asks for each of them. Words of a text are never compared with names. A forged mark gains nothing, because an
unknown name is rendered like one that is not shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import StrEnum

ANOTHERS = "(another's)"
_BEGIN, _BETWEEN, _END = "\x02", "\x1f", "\x03"
# The end of a text ends a mention too: a text that was cut there shows no part of a hidden name.
_MENTION = re.compile(f"{_BEGIN}([a-z]*)(?:{_BETWEEN}([^{_BEGIN}{_BETWEEN}{_END}]*))?(?:{_END}|$)")
_RUN = re.compile(f"(?:{_MENTION.pattern})(?:, {_MENTION.pattern})*")
_MARKS = str.maketrans("", "", _BEGIN + _BETWEEN + _END)


class Mentioned(StrEnum):
    """Kinds of objects whose names are not for every reader."""

    REQUEST = "request"  # a waiting request or an allocation, by its ID
    QUEUE = "queue"
    TENANT = "tenant"
    USER = "user"
    PROCESS = "process"  # a description of an unmanaged process
    NETWORK = "network"  # an object of a tenant's network, by its path
    POD = "pod"  # a pod of a cluster, NAMESPACE/NAME
    BUDGET = "budget"  # a disruption budget of a cluster, NAMESPACE/NAME


def mention(kind: Mentioned, name: str) -> str:
    """The name, marked; it may stand anywhere in a text."""
    return f"{_BEGIN}{kind}{_BETWEEN}{name.translate(_MARKS)}{_END}" if name else ""


def mentions(kind: Mentioned, names: Iterable[str]) -> str:
    """The names, each marked, separated by commas."""
    return ", ".join(mention(kind, name) for name in names)


def render(text: str, shown: Callable[[str, str], bool]) -> str:
    """The text for one reader; ``shown`` is given the kind and the name of each mention."""
    if _BEGIN in text:
        text = _MENTION.sub(lambda found: (found[2] or "") if shown(found[1], found[2] or "") else ANOTHERS, text)
    return _unmarked(text)


def _unmarked(text: str) -> str:
    """The text without marks that belong to no mention. Most texts have none, and to search is faster than to translate."""
    return text.translate(_MARKS) if _BEGIN in text or _BETWEEN in text or _END in text else text


def plain(text: str) -> str:
    """The text with all names, for readers who see everything: logs and administrators."""
    return render(text, lambda _kind, _name: True)


def redacted(text: str) -> str:
    """The text without any name, for readers of whom nothing is known."""
    return render(text, lambda _kind, _name: False)


def render_lists(text: str, words: Callable[[list[tuple[str, str]]], str]) -> str:
    """The text for one reader; ``words`` is given the kind and the name of each mention of a list at once, so that it can count
    those that it does not name. A list is what ``mentions`` makes; a single mention is a list of one."""
    if _BEGIN in text:
        text = _RUN.sub(lambda run: words([(m[1], m[2] or "") for m in _MENTION.finditer(run[0])]), text)
    return _unmarked(text)
