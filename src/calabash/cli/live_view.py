"""Text on a terminal: colours, and a view that each update replaces."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from types import TracebackType
from typing import Self, TextIO

_CURSOR_OFF, _CURSOR_ON = "\x1b[?25l", "\x1b[?25h"
_OTHER_SCREEN, _FORMER_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
_TO_CORNER, _ERASE_BELOW, _ERASE_LINE = "\x1b[H", "\x1b[J", "\x1b[K"
_RESET = "\x1b[0m"
STYLES = {"bold": "\x1b[1m", "red": "\x1b[31m", "green": "\x1b[32m", "yellow": "\x1b[33m"}


def is_terminal(stream: TextIO) -> bool:
    """Return True if a stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "") not in {"", "dumb", "unknown"}


def coloured(text: str, patterns: Sequence[tuple[str, str]]) -> str:
    """Return the text with control sequences for its styles; unchanged if NO_COLOR is set.

    Args:
        patterns: regular expressions and the style (of ``STYLES``) of what matches; a later one replaces earlier ones.
    """
    if os.environ.get("NO_COLOR"):
        return text
    styles = [""] * len(text)
    for pattern, style in patterns:
        for match in re.finditer(pattern, text):
            styles[match.start() : match.end()] = [STYLES[style]] * (match.end() - match.start())
    shown, current = [], ""
    for character, style in zip(text, styles, strict=True):
        if style != current:
            shown.append((_RESET if current else "") + style)
            current = style
        shown.append(character)
    return "".join(shown) + (_RESET if current else "")


class LiveView:
    """View on a terminal that each update replaces, in a ``with`` block; nothing of it is left afterwards.

    Args:
        stream: the terminal.
        whole: use a screen of its own; otherwise the view is below what was printed before.
    """

    def __init__(self, stream: TextIO, *, whole: bool) -> None:
        self._stream = stream
        self._whole = whole
        self._lines = 0

    def __enter__(self) -> Self:
        self._write(_CURSOR_OFF + (_OTHER_SCREEN if self._whole else ""))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write((_FORMER_SCREEN if self._whole else self._to_start() + _ERASE_BELOW) + _CURSOR_ON)

    def update(self, text: str, patterns: Sequence[tuple[str, str]] = ()) -> None:
        """Show a text, whose lines are not longer than the terminal is wide; lines that have no room are left out."""
        lines = text.splitlines()[: shutil.get_terminal_size().lines - 1]
        shown = coloured("\n".join(lines), patterns).replace("\n", f"{_ERASE_LINE}\n")
        self._write(f"{self._to_start()}{shown}{_ERASE_LINE}\n{_ERASE_BELOW}")
        self._lines = len(lines)

    def _to_start(self) -> str:
        """Return the sequence that moves the cursor to the first line of the view."""
        if self._whole:
            return _TO_CORNER
        return f"\x1b[{self._lines}A\r" if self._lines else "\r"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
