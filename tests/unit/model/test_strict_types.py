"""Types of decoded values: characters that a text may have."""

from __future__ import annotations

import unicodedata

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.model.strict_types import TEXT_MAX, Text

DIRECTIONS = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
MARKS = "\u061c\u200e\u200f"  # Arabic letter mark, left-to-right mark, right-to-left mark


def accepted(text: str) -> bool:
    try:
        msgspec.convert(text, Text)
    except msgspec.ValidationError:
        return False
    return True


@pytest.mark.parametrize(
    "text", ["", "web 1, of team-a", "Größe \u2013 5 €", "東京", "नमस्ते", "e\u0301", "👩\u200d🔬", "עברית", "مرحبا"]
)
def test_text_of_any_script_is_accepted(text: str) -> None:
    assert accepted(text)


@pytest.mark.parametrize(
    "text", ["a\nb", "a\tb", "a\x00", "\x1b[2J", "a\x7f", "\x85", "a\u2028b", "a\u202eb", "\u2067x", "\ud800"]
)
def test_control_characters_and_changes_of_direction_are_refused(text: str) -> None:
    assert not accepted(text)


@given(st.characters())
def test_character_is_refused_exactly_if_it_is_a_control_character_or_changes_the_direction(character: str) -> None:
    control = unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}
    direction = unicodedata.bidirectional(character) in DIRECTIONS or character in MARKS
    assert accepted(f"a{character}b") is not (control or direction)


def test_every_refused_character_is_a_control_character_or_changes_the_direction() -> None:
    refused = [chr(code) for code in range(0x3000) if not accepted(chr(code))]
    assert all(
        unicodedata.category(one) in {"Cc", "Zl", "Zp"} or unicodedata.bidirectional(one) in DIRECTIONS or one in MARKS
        for one in refused
    )
    assert len(refused) == 65 + 2 + 9 + 3


def test_text_is_limited_in_length() -> None:
    assert accepted("é" * TEXT_MAX)
    assert not accepted("é" * (TEXT_MAX + 1))
