"""Print rows as a table, JSON, YAML or names."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

FORMATS = ("table", "wide", "json", "yaml", "name")
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Column of a table: its heading, the text of a row, and if it is shown with ``-o wide`` only."""

    title: str
    text: Callable[[Row], str]
    wide: bool = False
    right: bool = False


def option_of(*formats: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the ``-o`` option with the given formats; the default is ``table``."""
    return click.option(
        "-o", "--output", "fmt", type=click.Choice(formats), default="table", show_default=True, help="Output format."
    )


def option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the ``-o`` option with all formats."""
    return option_of(*FORMATS)(command)


def table(columns: Sequence[Column], rows: Sequence[Row], width: int = 0) -> str:
    """Return rows as aligned text without colour or borders, one line each, cut to ``width`` columns unless it is 0."""
    cells = [[c.title for c in columns], *[[printable(c.text(row)) for c in columns] for row in rows]]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = (
        "  ".join(
            cell.rjust(wide) if column.right else cell.ljust(wide)
            for cell, wide, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in cells
    )
    return "\n".join(line if not width or len(line) <= width else line[: width - 1] + "…" for line in lines)


def terminal_width() -> int:
    """Return the width of the terminal on stdout; 0 if stdout is not a terminal."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError, AttributeError):
        return 0


def command_line(row: Row) -> str:
    """Return the command line of a row, the last column of listings."""
    return " ".join(row["command"])


def printable(text: str) -> str:
    """Return the text without line breaks and control characters, which could control the reader's terminal."""
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(c if c.isprintable() else "?" for c in line)


def emit(kind: str, rows: Sequence[Row], columns: Sequence[Column], fmt: str, *, name: str = "id") -> None:
    """Print rows in a format.

    Args:
        kind: kind of the JSON or YAML list.
        name: field that ``-o name`` prints of each row.
    """
    if fmt in ("json", "yaml"):
        click.echo(document(kind, rows, fmt))
    elif fmt == "name":
        for row in rows:
            click.echo(str(row[name]))
    else:
        shown = [c for c in columns if fmt == "wide" or not c.wide]
        click.echo(table(shown, rows, 0 if fmt == "wide" else terminal_width()))


def emit_made(kind: str, made: Row, text: str, fmt: str) -> None:
    """Print a created object as JSON or YAML, or ``text`` in other formats."""
    click.echo(document(kind, made, fmt) if fmt in ("json", "yaml") else text)


def document(kind: str, body: Sequence[Row] | Row, fmt: str) -> str:
    """Return an object or a list as a versioned document in JSON or YAML."""
    value: dict[str, Any] = {"apiVersion": "calabash.dev/v1", "kind": kind}
    if isinstance(body, Mapping):
        value |= body
    else:
        value["items"] = list(body)
    if fmt == "yaml":
        import yaml  # noqa: PLC0415 - only when asked for

        text: str = yaml.safe_dump(value, sort_keys=False)
        return text.rstrip()
    import json  # noqa: PLC0415

    return json.dumps(value, indent=2)


def dash(value: object) -> str:
    """Return the text of a value, ``-`` if it is empty."""
    return "-" if value in (None, "", [], ()) else str(value)
