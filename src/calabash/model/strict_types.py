"""Types of decoded values that have limits: msgspec refuses unknown fields, other types and values above the limits."""

from __future__ import annotations

from typing import Annotated, TypeVar

from msgspec import Meta, Struct

T = TypeVar("T")

ITEMS_MAX = 1024  # items of one list
TEXT_MAX = 255
NUMBER_MAX = 1 << 50

Text = Annotated[str, Meta(max_length=TEXT_MAX, pattern=r"^[\w -~]*\Z")]
"""One line of letters and digits of any script, and of printable ASCII."""
Integer = Annotated[int, Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]
Real = Annotated[float, Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]
Items = Annotated[tuple[T, ...], Meta(max_length=ITEMS_MAX)]


class StrictStruct(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of values that are decoded from data of users."""
