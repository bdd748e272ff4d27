"""Messages: rendering for a reader, lists, device models, and their stored form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.model.message_codec import decode_text, encode_text
from calabash.model.messages import (
    ANOTHERS,
    MARKS,
    NAME_TYPES,
    Argument,
    FilteringViewer,
    Message,
    ModelName,
    Name,
    Names,
    QueueName,
    RequestName,
    Text,
    in_full,
    joined,
    mentions,
    names,
    redacted,
    render,
    restricted,
    with_models,
)

_WORDS = st.text(st.characters(exclude_characters=MARKS, codec="utf-8"), max_size=12)
_VALUES = st.text(st.characters(exclude_characters=MARKS, codec="utf-8"), min_size=1, max_size=12)
_NAMES = st.builds(lambda kind, value: kind(f"<{value}>"), st.sampled_from(NAME_TYPES), _VALUES)
_ARGUMENTS: st.SearchStrategy[Argument] = st.one_of(
    _WORDS, st.integers(), _NAMES, st.lists(_NAMES, min_size=1, max_size=3).map(lambda found: Names(tuple(found)))
)
_MESSAGES = st.recursive(
    st.builds(lambda argument: Message("it waits for {x}, {{so}} it is", x=argument), _ARGUMENTS),
    lambda inner: st.builds(lambda left, right: Message("{left}: {right}", left=left, right=right), inner, inner),
    max_leaves=4,
)


def _named(message: Text) -> list[Name]:
    if isinstance(message, str):
        return []
    found: list[Name] = []
    for _, value in message.arguments:
        match value:
            case Message():
                found += _named(value)
            case Names(several):
                found += several
            case Name():
                found.append(value)
    return found


@given(_MESSAGES)
def test_reader_sees_exactly_the_names_that_it_may_see(message: Message) -> None:
    every = _named(message)
    assert all(name.value in in_full(message) for name in every)
    words = redacted(message)
    assert words.count(ANOTHERS) >= len(every)
    shown = set(every[::2])
    text = render(message, FilteringViewer(lambda name: name in shown))
    assert all(name.value in text for name in shown)
    hidden = [name for name in every if name not in shown]
    assert text.count(ANOTHERS) >= len(hidden)


@given(_MESSAGES)
def test_stored_form_keeps_words_and_names(message: Message) -> None:
    stored = decode_text(encode_text(message))
    assert in_full(stored) == in_full(message)
    assert redacted(stored) == redacted(message)
    assert sorted(map(repr, _named(stored))) == sorted(map(repr, _named(message)))


@given(st.text(MARKS + "request{}ab, ", max_size=40))
def test_any_stored_text_is_rendered_without_marks(stored: str) -> None:
    for text in (in_full(decode_text(stored)), redacted(decode_text(stored))):
        assert not set(text) & set(MARKS)


def test_truncated_stored_text_does_not_show_the_beginning_of_a_name() -> None:
    stored = encode_text(Message("for {request}", request=RequestName("theirs")))
    assert redacted(decode_text(stored[:-3])) == f"for {ANOTHERS}"


@given(_MESSAGES)
def test_restricted_message_is_shown_to_every_reader_as_to_its_first_one(message: Message) -> None:
    shown = set(_named(message)[::2])
    viewer = FilteringViewer(lambda name: name in shown)
    found = restricted(message, viewer, kept=lambda name: name in shown and isinstance(name, QueueName))
    assert in_full(found) == in_full(decode_text(encode_text(found))) == render(message, viewer)
    left = [] if isinstance(found, str) else _named(found)
    assert all(isinstance(name, QueueName) and name in shown for name in left)


def test_restricted_message_keeps_the_names_of_the_kept_type() -> None:
    message = Message("queue {queue} waits for {request}", queue=QueueName("q"), request=RequestName("r"))
    found = restricted(message, FilteringViewer(lambda _: True), kept=lambda name: isinstance(name, QueueName))
    assert mentions(found, QueueName("q"))
    assert not mentions(found, RequestName("r"))
    assert in_full(found) == "queue q waits for r"


def test_name_in_an_f_string_is_redacted() -> None:
    queue, list_ = QueueName("prod"), names(QueueName, ["prod", "batch"])
    assert f"{queue}; {list_}; {Message('{q}', q=queue)}" == f"{ANOTHERS}; {ANOTHERS}, {ANOTHERS}; {ANOTHERS}"


def test_model_names_are_shown_to_every_reader_and_may_be_displayed_otherwise() -> None:
    message = Message("have {there}, asked {asked}", there=names(ModelName, ["u1", "u2"]), asked=ModelName("u3"))
    assert redacted(message) == "have u1, u2, asked u3"
    models = {"u1": "T4", "u2": "T4"}
    shown = with_models(Message("no: {cause}", cause=message), lambda name: models.get(name.value, name.value))
    assert redacted(shown) == "no: have T4, asked u3"


def test_mentioned_names_are_found_by_type_and_value() -> None:
    message = Message("{q}: {r}", q=QueueName("prod"), r=Message("{n}", n=names(RequestName, ["a", "b"])))
    assert mentions(message, QueueName("prod"))
    assert mentions(message, RequestName("b"))
    assert not mentions(message, RequestName("prod"))
    assert not mentions("queue prod", QueueName("prod"))


def test_joined_texts_leave_out_empty_ones() -> None:
    queue = Message("queue {queue}", queue=QueueName("prod"))
    assert joined("; ", ["", "a", "", "b"]) == "a; b"
    assert joined("; ", ["", queue]) == queue
    assert in_full(joined("; ", ["a", "", queue, "{b}"])) == "a; queue prod; {b}"


def test_messages_with_equal_templates_and_arguments_are_equal() -> None:
    message = Message("{count} of {queue}", count=2, queue=QueueName("prod"))
    assert message == Message("{count} of {queue}", count=2, queue=QueueName("prod"))
    assert message != message.replaced(count=3)
    assert message.argument("count") == 2
    assert hash(message) == hash(message.replaced())
    with pytest.raises(KeyError):
        message.argument("other")
