"""Types of decoded values that have limits: msgspec refuses unknown fields, other types and values above the limits."""

from __future__ import annotations

from typing import Annotated, TypeVar

from msgspec import Meta, Struct

T = TypeVar("T")

ITEMS_MAX = 1024  # items of one list
TEXT_MAX = 255
NUMBER_MAX = 1 << 50

_CONTROLS = r"\x00-\x1f\x7f-\x9f\u2028\u2029"
_BIDIRECTIONAL = r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_SURROGATES = r"\ud800-\udfff"
Text = Annotated[str, Meta(max_length=TEXT_MAX, pattern=rf"^[^{_CONTROLS}{_BIDIRECTIONAL}{_SURROGATES}]*\Z")]
"""One line of any characters, except control characters and those that change the direction of the text after them."""
Integer = Annotated[int, Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]
Real = Annotated[float, Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]
Items = Annotated[tuple[T, ...], Meta(max_length=ITEMS_MAX)]


class StrictStruct(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of values that are decoded from data of users."""
