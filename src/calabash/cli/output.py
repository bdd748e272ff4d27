"""Printers: one place decides how rows become a table, JSON, YAML or names."""

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
    """A table column: its heading, how a row becomes its text, and whether only ``-o wide`` shows it."""

    title: str
    text: Callable[[Row], str]
    wide: bool = False
    right: bool = False


def option_of(*formats: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The ``-o`` option of a command with formats of its own; the default is ``table``."""
    return click.option(
        "-o", "--output", "fmt", type=click.Choice(formats), default="table", show_default=True, help="Output format."
    )


def option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The ``-o`` option that every listing command has."""
    return option_of(*FORMATS)(command)


def table(columns: Sequence[Column], rows: Sequence[Row], width: int = 0) -> str:
    """Rows as aligned text; no colour, no borders, one line each whatever the cells hold, ``width`` columns at most."""
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
    """Columns of the terminal that stdout is; 0 when it is none, then nothing is cut."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError, AttributeError):
        return 0


def command_line(row: Row) -> str:
    """The last column of a listing: what runs. A terminal cuts it at its width."""
    return " ".join(row["command"])


def printable(text: str) -> str:
    """Without line breaks and control characters: what one user typed must not move another user's cursor."""
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(c if c.isprintable() else "?" for c in line)


def emit(kind: str, rows: Sequence[Row], columns: Sequence[Column], fmt: str, *, name: str = "id") -> None:
    """Print a list of rows in the asked format; ``kind`` names the JSON list object."""
    if fmt in ("json", "yaml"):
        click.echo(document(kind, rows, fmt))
    elif fmt == "name":
        for row in rows:
            click.echo(str(row[name]))
    else:
        shown = [c for c in columns if fmt == "wide" or not c.wide]
        click.echo(table(shown, rows, 0 if fmt == "wide" else terminal_width()))


def emit_made(kind: str, made: Row, text: str, fmt: str) -> None:
    """Print one object that a command has made: as JSON or YAML where that is asked for, else ``text``."""
    click.echo(document(kind, made, fmt) if fmt in ("json", "yaml") else text)


def document(kind: str, body: Sequence[Row] | Row, fmt: str) -> str:
    """A versioned object as JSON or YAML."""
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
    """Text of a value, ``-`` for none."""
    return "-" if value in (None, "", [], ()) else str(value)
