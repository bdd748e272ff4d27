"""Colours and views that are replaced, as a terminal of a few lines shows them."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

import pytest

from calabash.cli.live_view import LiveView, coloured, is_terminal

CONTROL = re.compile(r"\x1b\[(\??[0-9]*)([A-Za-z])|(.)", re.DOTALL)


class Terminal(io.StringIO):
    """A terminal that does what the view tells it; of colours and the cursor's look it shows nothing."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """Return the lines on the screen."""
        lines, row, column = [""], 0, 0
        for argument, command, character in CONTROL.findall(self.getvalue()):
            if character == "\n":
                row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
            elif character == "\r":
                column = 0
            elif character:
                lines[row] = lines[row][:column].ljust(column) + character + lines[row][column + 1 :]
                column += 1
            elif command == "A":
                row -= int(argument)
            elif command == "H":
                row = column = 0
            elif command == "K":
                lines[row] = lines[row][:column]
            elif command == "J":
                lines = [*lines[:row], lines[row][:column]]
        return lines


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("LINES", "5")
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize(
    ("text", "patterns", "expected"),
    [
        ("all good", [], "all good"),
        ("all good", [("good", "green")], "all \x1b[32mgood\x1b[0m"),
        ("all good", [("all good", "bold"), ("good", "red")], "\x1b[1mall \x1b[0m\x1b[31mgood\x1b[0m"),
        ("a b a", [("a", "yellow")], "\x1b[33ma\x1b[0m b \x1b[33ma\x1b[0m"),
    ],
)
def test_later_style_replaces_earlier_one(text: str, patterns: Sequence[tuple[str, str]], expected: str) -> None:
    assert coloured(text, patterns) == expected


def test_no_color_is_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert coloured("all good", [("good", "green")]) == "all good"


def test_a_stream_without_cursor_movement_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_terminal(Terminal())
    assert not is_terminal(io.StringIO())
    for name in ("dumb", ""):
        monkeypatch.setenv("TERM", name)
        assert not is_terminal(Terminal())


@pytest.mark.parametrize("whole", [True, False])
def test_update_replaces_longer_text(whole: bool) -> None:
    terminal = Terminal()
    with LiveView(terminal, whole=whole) as view:
        view.update("a long line\nsecond\nthird", [("long", "red")])
        assert terminal.lines() == ["a long line", "second", "third", ""]
        view.update("short")
        assert terminal.lines() == ["short", ""]
        view.update("1\n2")
        assert terminal.lines() == ["1", "2", ""]


def test_view_below_other_text_is_removed_at_its_end() -> None:
    terminal = Terminal()
    terminal.write("before\n")
    with LiveView(terminal, whole=False) as view:
        view.update("1\n2")
        view.update("3\n4")
        assert terminal.lines() == ["before", "3", "4", ""]
    assert terminal.lines() == ["before", ""]
    assert terminal.getvalue().endswith("\x1b[?25h")


def test_lines_that_have_no_room_are_left_out() -> None:
    terminal = Terminal()
    with LiveView(terminal, whole=True) as view:
        view.update("\n".join("123456789"))
        assert terminal.lines() == ["1", "2", "3", "4", ""]
