"""Splitting of a stream of OVSDB's JSON-RPC into messages."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.adapters.ovn.framing import BrokenStreamError, Messages

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
MESSAGES = st.lists(st.dictionaries(TEXTS, st.one_of(st.integers(), TEXTS, st.lists(TEXTS, max_size=2)), max_size=3))


@given(MESSAGES, st.lists(st.integers(1, 40)), st.booleans())
def test_messages_come_out_as_they_went_in_however_they_are_cut(
    messages: list[dict[str, object]], cuts: list[int], plain: bool
) -> None:
    stream = b"".join(json.dumps(message, ensure_ascii=plain).encode() for message in messages)
    reader, found, at = Messages(), [], 0
    for cut in [*cuts, len(stream)]:
        found += reader.fed(stream[at : at + cut])
        at += cut
    assert found == messages


def test_what_is_no_message_is_told_at_once() -> None:
    with pytest.raises(BrokenStreamError, match="no message begins with 'H'"):
        Messages().fed(b"HTTP/1.1 400 {}")
    with pytest.raises(BrokenStreamError):
        Messages().fed(b'{"a": "\xff"}')
