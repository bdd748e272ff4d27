"""Scan JSON texts without recursion, and repair parts that a strict decoder refuses.

Users can store any JSON value in some fields of an object (opaque parameters of claims, status data of drivers), and
the API server returns it as it was written. msgspec recurses for each level of nesting, also where it only skips a
value, and refuses lone surrogates and numbers beyond its range. One such object in a page makes the whole page
unreadable. The functions here use regular expressions and counters instead of recursion, so that their stack is
constant and their time linear.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

DEPTH_MAX = 64  # levels of one object; the types of this package have fewer than 20
_INTEGER_MAX = 19  # characters of an integer that surely fits into 64 bits

Span = tuple[int, int]

_SPACE = re.compile(rb"[ \t\n\r]*+")
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_SCALAR = re.compile(rb"[-+.0-9A-Za-z]++")
_BRACKETS = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[{]++|[\]}]++', re.DOTALL)
_PARTS = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[{]|[\]}]|-?[0-9][-+.0-9eE]{2,}+', re.DOTALL)
_ESCAPES = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.DOTALL
)


def members(text: bytes, at: int = 0) -> dict[str, Span]:
    """Return the span of each value, by key, of the JSON object that starts at ``at``.

    If a key occurs several times, the span of its last value is returned.

    Raises ValueError if the text is not JSON.
    """
    found: dict[str, Span] = {}
    at = _expect(text, at, b"{")
    if text[at : at + 1] == b"}":
        return found
    while True:
        key = _STRING.match(text, at)
        if key is None:
            raise ValueError(f"no key at byte {at}")
        start = _expect(text, _after_space(text, key.end()), b":")
        end = _skip(text, start)
        found[key[0][1:-1].decode(errors="replace")] = (start, end)
        at = _after_space(text, end)
        if text[at : at + 1] == b"}":
            return found
        at = _expect(text, at, b",")


def elements(text: bytes, at: int) -> Iterator[Span]:
    """Yield the span of each element of the array that starts at ``at``. Raises ValueError if the text is not JSON."""
    at = _expect(text, at, b"[")
    if text[at : at + 1] == b"]":
        return
    while True:
        end = _skip(text, at)
        yield at, end
        at = _after_space(text, end)
        if text[at : at + 1] == b"]":
            return
        at = _expect(text, at, b",")


def repaired(text: bytes) -> bytes:
    """Return the JSON value in a form that msgspec can decode: values that msgspec refuses for every type are replaced.

    Values below ``DEPTH_MAX`` levels and numbers that no 64-bit type holds become null. Lone surrogates and bytes that
    are not UTF-8 become U+FFFD, as Go's decoder reads them. Raises ValueError if the text is not JSON.
    """
    try:
        text.decode()
    except UnicodeDecodeError:
        text = text.decode(errors="replace").encode()
    out: list[bytes] = []
    depth = copied = at = 0
    while (part := _PARTS.search(text, at)) is not None:
        at = part.end()
        first = part[0][:1]
        replacement: bytes | None = None
        if first == b'"':
            if b"\\u" in part[0]:
                replacement = _ESCAPES.sub(_escape, part[0])
        elif first in b"[{":
            depth += 1
            if depth > DEPTH_MAX:
                depth -= 1
                at = _skip(text, part.start())
                replacement = b"null"
        elif first in b"]}":
            depth -= 1
        elif not _is_in_range(part[0]):
            replacement = b"null"
        if replacement is not None:
            out += (text[copied : part.start()], replacement)
            copied = at
    return b"".join((*out, text[copied:]))


def _is_in_range(number: bytes) -> bool:
    if number.lstrip(b"-").isdigit():
        return len(number) <= _INTEGER_MAX
    try:
        return math.isfinite(float(number))
    except ValueError:
        return False


def _escape(found: re.Match[bytes]) -> bytes:
    return b"\\ufffd" if found[1] is not None else found[0]


def _skip(text: bytes, at: int) -> int:
    """Return the end of the value that starts at ``at``."""
    first = text[at : at + 1]
    if first in (b"{", b"["):
        depth = 0
        for part in _BRACKETS.finditer(text, at):
            kind, length = text[part.start()], part.end() - part.start()
            if kind in b"[{":
                depth += length
            elif kind != 0x22:
                if depth <= length:
                    return part.start() + depth
                depth -= length
        raise ValueError(f"the value at byte {at} has no end")
    found = (_STRING if first == b'"' else _SCALAR).match(text, at)
    if found is None:
        raise ValueError(f"no value at byte {at}")
    return found.end()


def _expect(text: bytes, at: int, sign: bytes) -> int:
    if text[at : at + 1] != sign:
        raise ValueError(f"{sign.decode()!r} is missing at byte {at}")
    return _after_space(text, at + 1)


def _after_space(text: bytes, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found is not None else at
