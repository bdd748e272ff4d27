"""Stored form of messages: text in which names are marked with control characters, by their type.

Journals and state files keep messages in this form, which also older versions of the product read and write. The arguments
other than names become words of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from calabash.model.messages import MARKS, NAME_TYPES, Message, ModelName, Name, Names, Text, pieces

_BEGIN, _BETWEEN, _END = tuple(MARKS)
# The end of a text ends a name too: a truncated text does not show the beginning of a redacted name.
_NAME = re.compile(f"{_BEGIN}([a-z]*)(?:{_BETWEEN}([^{MARKS}]*))?(?:{_END}|$)")
_LIST = re.compile(f"(?:{_NAME.pattern})(?:, {_NAME.pattern})*")
_WITHOUT_MARKS = str.maketrans("", "", MARKS)
_TYPES = {kind.kind: kind for kind in NAME_TYPES}


class _UnknownName(Name):
    """A name of a type that this version does not know."""

    kind = "unknown"


def encode_text(text: Text) -> str:
    """Return the stored form of a text."""
    if isinstance(text, str):
        return text.translate(_WITHOUT_MARKS)
    return "".join(map(_encoded, pieces(text)))


def decode_text(stored: str) -> Text:
    """Return a stored text. A name of an unknown type is shown to administrators only."""
    if _BEGIN not in stored:
        return stored
    template, arguments = "", dict[str, Names]()
    for piece in _decoded(stored):
        if isinstance(piece, Names):
            template += f"{{n{len(arguments)}}}"
            arguments[f"n{len(arguments)}"] = piece
        else:
            template += piece.translate(_WITHOUT_MARKS).replace("{", "{{").replace("}", "}}")
    return Message(template, **arguments)


def _encoded(piece: str | Name | Names) -> str:
    match piece:
        case Names(found, separator):
            return separator.join(map(_encoded, found))
        case ModelName():
            return piece.value.translate(_WITHOUT_MARKS)
        case Name():
            value = piece.value.translate(_WITHOUT_MARKS)
            return f"{_BEGIN}{piece.kind}{_BETWEEN}{value}{_END}" if value else ""
    return piece.translate(_WITHOUT_MARKS)


def _decoded(stored: str) -> Iterator[str | Names]:
    position = 0
    for found in _LIST.finditer(stored):
        yield stored[position : found.start()]
        yield Names(tuple(_TYPES.get(one[1], _UnknownName)(one[2] or "") for one in _NAME.finditer(found[0])))
        position = found.end()
    yield stored[position:]
