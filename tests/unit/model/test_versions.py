"""Versions that work together: formats of data, minor versions of clients, and agents of a planner."""

from __future__ import annotations

import pytest

import calabash
from calabash.adapters.store import tables
from calabash.model.errors import CalabashError, Reason
from calabash.model.stated_version import require_stated
from calabash.model.versions import FORMATS, JOURNAL, Format, agent_error, minor_version, require_client
from calabash.node.slots import layout

NOTES = Format(name="layout", oldest=2, newest=4, data="notes", reader="a reader", hint="read them elsewhere")


@pytest.mark.parametrize("found", [2, 3, 4])
def test_each_version_of_the_range_is_supported(found: int) -> None:
    NOTES.require(found, "file notes")
    require_stated(NOTES, f'{{"version":{found},"more":[]}}', "file notes")


@pytest.mark.parametrize("found", [1, 5, -1])
def test_version_outside_of_the_range_is_refused_with_what_was_found_and_what_is_supported(found: int) -> None:
    with pytest.raises(CalabashError) as decoded:
        NOTES.require(found, "file notes")
    with pytest.raises(CalabashError) as stated:
        require_stated(NOTES, f'{{"version":{found},"more":[]}}', "file notes")
    for error in (decoded.value, stated.value):
        assert error.message == f"file notes has layout {found}; calabash {calabash.__version__} supports layout 2 to 4"
        assert (error.reason, error.hint) == (Reason.VERSION_MISMATCH, "read them elsewhere")


@pytest.mark.parametrize("text", ["", "[" * 100_000, "[]", '{"version":"9"}', "{}", b"\xff", '{"version":1e999}'])
def test_text_that_states_no_version_is_left_to_the_strict_decoder(text: str | bytes) -> None:
    require_stated(NOTES, text, "file notes")


def test_the_readers_of_formats_use_their_numbers() -> None:
    assert JOURNAL.newest == tables.SCHEMA_VERSION
    slots = next(one for one in FORMATS if one.name == "page version")
    assert (slots.oldest, slots.newest) == (layout.PAGE_PLAIN, layout.PAGE_VERSION)
    assert all(1 <= one.oldest <= one.newest and one.hint and one.reader for one in FORMATS)


@pytest.mark.parametrize(
    ("text", "minor"),
    [("0.1.0", (0, 1)), ("12.34.5rc1+local.7", (12, 34)), ("0.1", (0, 1)), ("1", None), ("", None), ("a.b", None)],
)
def test_minor_version_is_the_first_two_numbers(text: str, minor: tuple[int, int] | None) -> None:
    assert minor_version(text) == minor


def test_client_of_the_same_minor_version_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calabash, "__version__", "2.5.3")
    for client in ("2.5.0", "2.5.9", "2.5.10.dev1"):
        require_client(client, server="the pool")


@pytest.mark.parametrize("client", ["2.4.3", "2.6.0", "1.5.3", "25.3", "2", "nonsense"])
def test_client_of_another_minor_version_is_refused_with_both_versions_and_a_hint(
    client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calabash, "__version__", "2.5.3")
    with pytest.raises(CalabashError) as caught:
        require_client(client, server="the pool")
    assert caught.value.message == (
        f"the client is calabash {client}; the pool is calabash 2.5.3 and supports clients of versions 2.5.x"
    )
    assert caught.value.reason is Reason.VERSION_MISMATCH
    assert "restart the pool" in caught.value.hint


def test_planner_works_with_agents_of_its_minor_version_and_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calabash, "__version__", "2.5.3")
    assert [agent_error(version, node="n1") for version in ("2.5.0", "2.4.9", "", "unknown")] == [""] * 4
    for version in ("2.3.0", "2.6.0", "3.5.3"):
        text = agent_error(version, node="n1")
        assert text.startswith(f"the agent of node n1 is calabash {version}, and planner 2.5.3 supports agents of")
        assert "2.4.x to 2.5.x; hint: " in text
