"""Decoding of OVSDB columns, and of the differences with which servers report changed values."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.adapters.ovn.replica import Replica
from calabash.adapters.ovn.schema import ColumnType, NewRow, RowId, tables_of
from calabash.model.errors import CalabashError

ROW = "11111111-2222-3333-4444-555555555555"
SCHEMA = {
    "tables": {
        "T": {
            "columns": {
                "text": {"type": "string"},
                "tag": {"type": {"key": "integer", "min": 0, "max": 1}},
                "members": {"type": {"key": {"type": "uuid", "refTable": "T"}, "min": 0, "max": "unlimited"}},
                "words": {"type": {"key": "string", "min": 0, "max": "unlimited"}},
                "pairs": {"type": {"key": "string", "value": "integer", "min": 0, "max": "unlimited"}},
                "parent": {"type": {"key": {"type": "uuid", "refTable": "T"}, "min": 0, "max": 1}},
            }
        }
    }
}
TYPES = tables_of(SCHEMA)["T"]


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("text", "a", "a"),
        ("tag", None, ["set", []]),
        ("tag", 7, 7),
        ("words", frozenset(), ["set", []]),
        ("words", frozenset(("a",)), ["set", ["a"]]),
        ("pairs", {"rate": 10}, ["map", [["rate", 10]]]),
        ("parent", RowId(ROW), ["uuid", ROW]),
        ("members", frozenset((RowId(ROW),)), ["set", [["uuid", ROW]]]),
    ],
)
def test_values_and_what_is_told_of_them_are_one_to_one(column: str, value: Any, told: Any) -> None:
    assert TYPES[column].encoded(value, column) == told
    assert TYPES[column].decoded(told) == value


def test_a_set_of_one_is_told_as_its_member_and_is_a_set() -> None:
    assert TYPES["words"].decoded("a") == frozenset(("a",))
    assert TYPES["members"].decoded(["uuid", ROW]) == frozenset((RowId(ROW),))
    assert TYPES["members"].encoded(frozenset((NewRow("row0"),)), "") == ["set", [["named-uuid", "row0"]]]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("text", None),
        ("text", 1),
        ("tag", "7"),
        ("tag", True),
        ("words", frozenset((1,))),
        ("pairs", {"rate": "10"}),
        ("pairs", {7: 7}),
        ("pairs", frozenset()),
        ("parent", "red/a/web1"),
        ("members", frozenset(("red/a/web1",))),
    ],
)
def test_what_a_column_cannot_hold_is_an_error(column: str, value: Any) -> None:
    with pytest.raises(CalabashError, match=f"{column} of it must be"):
        TYPES[column].encoded(value, f"{column} of it")


def difference(kind: ColumnType, before: Any, after: Any) -> Any:
    """Return the difference of two values as a server encodes it.

    For sets it has the elements that are in only one of them. For maps it has the pairs that are in only one or that differ.
    """
    if isinstance(after, frozenset):
        return kind.encoded(before ^ after, "")
    if isinstance(after, dict):
        gone = {key: value for key, value in before.items() if key not in after}
        return kind.encoded(gone | {k: v for k, v in after.items() if before.get(k) != v}, "")
    return kind.encoded(after, "")


SETS = st.frozensets(st.sampled_from("abcd"))
MAPS = st.dictionaries(st.sampled_from("abc"), st.sampled_from((1, 2)))
TAGS = st.one_of(st.none(), st.integers(0, 4))
ROWS = st.fixed_dictionaries({"words": SETS, "pairs": MAPS, "tag": TAGS, "text": st.text(max_size=2)})


@given(st.lists(ROWS, min_size=1))
def test_a_copy_that_takes_all_differences_is_like_the_last(states: list[dict[str, Any]]) -> None:
    replica = Replica()
    replica.begin({"T": TYPES})
    content = {column: TYPES[column].encoded(value, column) for column, value in states[0].items()}
    replica.take({"T": {ROW: {"insert": content}}})
    for before, after in itertools.pairwise(states):
        told = {c: difference(TYPES[c], before[c], after[c]) for c in after if before[c] != after[c]}
        (event,) = replica.take({"T": {ROW: {"modify": told}}})
        assert event.before is not None
        assert {column: event.before[column] for column in before} == before
    row = replica.tables["T"][RowId(ROW)]
    assert {column: row[column] for column in states[-1]} == states[-1]
    assert row["members"] == frozenset()  # what was never told is the default
    replica.take({"T": {ROW: {"delete": None}}})
    assert replica.tables["T"] == {}


def test_what_is_no_schema_is_told() -> None:
    schemas: list[dict[str, Any]] = [{}, {"tables": {"T": {}}}, {"tables": {"T": {"columns": {"c": {}}}}}]
    for told in schemas:
        with pytest.raises(CalabashError, match="schema cannot be read"):
            tables_of(told)
