"""Strict readers of CSV and JSONL files, whose errors name the file, the line, the column and the expected value.

Every line is a row, except empty lines.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calabash.model.errors import CalabashError, Reason, file_reason

NUMBER_MAX = 10**12
# int() and float() also accept 1_000, digits of other scripts and nan, which are errors here.
_WHOLE = re.compile(r"-?[0-9]{1,19}\Z")
_SECONDS = re.compile(r"-?[0-9]{1,19}(\.[0-9]{1,12})?([eE][+-]?[0-9]{1,2})?\Z")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file, with its line number."""

    path: Path
    line: int
    values: Mapping[str, Any]

    def error(self, what: str, hint: str) -> CalabashError:
        """Return an error that names the file and the line of this row."""
        return CalabashError(f"{self.path}:{self.line}: {what}", reason=Reason.BAD_FILE, hint=hint)

    def text(self, column: str, default: str | None = None) -> str:
        """Return the text of a column, or ``default`` if it is empty or missing.

        Raises CalabashError if it is empty or missing and ``default`` is None.
        """
        value = self.values.get(column)
        if value is None or value == "":
            if default is None:
                raise self.error(f"column {column} is empty", "give it a value in every row")
            return default
        return str(value).strip()

    def whole(self, column: str, *, default: int | None = None, most: int = NUMBER_MAX) -> int:
        """Return the whole number of a column, from 0 to ``most``. Raises CalabashError."""
        text = self.text(column, None if default is None else str(default))
        if not _WHOLE.match(text):
            raise self.error(f"column {column}: {text[:40]!r} is not a whole number", "write digits only")
        number = int(text)
        if not 0 <= number <= most:
            raise self.error(f"column {column}: {number} is out of range", f"write 0 to {most}")
        return number

    def seconds(self, column: str) -> float:
        """Return the seconds of a column, or 0 if it is empty or missing. Raises CalabashError."""
        text = self.text(column, "0")
        if not _SECONDS.match(text):
            raise self.error(f"column {column}: {text[:40]!r} is not a number of seconds", "write 90 or 1.5")
        number = float(text)
        if not 0 <= number <= NUMBER_MAX:
            raise self.error(f"column {column}: {text} is out of range", f"write 0 to {NUMBER_MAX}")
        return number


def read_csv(path: Path, *, needed: tuple[str, ...]) -> Iterator[Row]:
    """Yield the rows of a CSV file with a header line.

    Args:
        needed: columns that the file must have.

    Raises:
        CalabashError: the file does not exist, is not UTF-8, lacks a column, or a row has another number of cells.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as source:
            reader = csv.reader(source, strict=True)
            heading = next(reader, None)
            _check_heading(path, heading, needed)
            assert heading is not None
            for cells in reader:
                if not cells:
                    continue
                if len(cells) != len(heading):
                    raise CalabashError(
                        f"{path}:{reader.line_num}: {len(cells)} cells under {len(heading)} headings",
                        reason=Reason.BAD_FILE,
                        hint="check the line for missing cells, and quote texts that contain a comma",
                    )
                yield Row(path, reader.line_num, dict(zip(heading, cells, strict=True)))
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error), file_reason(error)) from error
    except UnicodeDecodeError as error:
        raise _unreadable(path, f"byte {error.start} is not UTF-8") from error
    except csv.Error as error:
        raise _unreadable(path, str(error)) from error


def read_jsonl(path: Path) -> Iterator[Row]:
    """Yield the rows of a file with one JSON object per line. Empty lines are skipped. Raises CalabashError."""
    try:
        with path.open(encoding="utf-8") as source:
            for number, line in enumerate(source, 1):
                if not line.strip():
                    continue
                try:
                    value = json.loads(line)
                except json.JSONDecodeError as error:
                    raise CalabashError(
                        f"{path}:{number}: not JSON: {error.msg} at column {error.colno}",
                        reason=Reason.BAD_FILE,
                        hint="write one JSON object per line",
                    ) from None
                if not isinstance(value, dict):
                    raise CalabashError(
                        f"{path}:{number}: {type(value).__name__} instead of an object",
                        reason=Reason.BAD_FILE,
                        hint="write one JSON object per line",
                    )
                yield Row(path, number, value)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error), file_reason(error)) from error
    except UnicodeDecodeError as error:
        raise _unreadable(path, f"byte {error.start} is not UTF-8") from error


def _check_heading(path: Path, heading: list[str] | None, needed: tuple[str, ...]) -> None:
    if heading is None:
        raise CalabashError(
            f"{path}: the file is empty", reason=Reason.BAD_FILE, hint=f"begin with the headings {', '.join(needed)}"
        )
    missing = [name for name in needed if name not in heading]
    if missing:
        raise CalabashError(
            f"{path}:1: missing columns: {', '.join(missing)}",
            reason=Reason.BAD_FILE,
            hint=f"needed are {', '.join(needed)}; found {', '.join(heading[:12])}",
        )
    if len(set(heading)) != len(heading):
        raise CalabashError(f"{path}:1: a heading occurs twice", reason=Reason.BAD_FILE, hint="use unique headings")


def _unreadable(path: Path, why: str, reason: Reason = Reason.BAD_FILE) -> CalabashError:
    return CalabashError(f"{path}: {why}", reason=reason, hint="check the path and that it is a UTF-8 text file")
