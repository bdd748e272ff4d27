"""CSV and JSONL rows with positions: every complaint names the file, the line, the column, and what would be right.

Nothing is skipped: an empty line at the end of a file is the only thing that is not a row.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calabash.model.errors import CalabashError, Reason

NUMBER_MAX = 10**12
# int() and float() also take 1_000, other scripts' digits and nan; a file with those is not what it seems.
_WHOLE = re.compile(r"-?[0-9]{1,19}\Z")
_SECONDS = re.compile(r"-?[0-9]{1,19}(\.[0-9]{1,12})?([eE][+-]?[0-9]{1,2})?\Z")


@dataclass(frozen=True, slots=True)
class Row:
    """One row and where it stands."""

    path: Path
    line: int
    values: Mapping[str, Any]

    def wrong(self, what: str, hint: str) -> CalabashError:
        """An error at this row."""
        return CalabashError(f"{self.path}:{self.line}: {what}", reason=Reason.BAD_FILE, hint=hint)

    def text(self, column: str, default: str | None = None) -> str:
        """A text; empty or missing gives ``default``, or is an error when there is none."""
        value = self.values.get(column)
        if value is None or value == "":
            if default is None:
                raise self.wrong(f"column {column} is empty", "every row needs it")
            return default
        return str(value).strip()

    def whole(self, column: str, *, default: int | None = None, most: int = NUMBER_MAX) -> int:
        """A whole number from 0 to ``most``."""
        text = self.text(column, None if default is None else str(default))
        if not _WHOLE.match(text):
            raise self.wrong(f"column {column}: {text[:40]!r} is not a whole number", "write digits only")
        number = int(text)
        if not 0 <= number <= most:
            raise self.wrong(f"column {column}: {number} is out of range", f"0 to {most}")
        return number

    def seconds(self, column: str) -> float:
        """A time or duration in seconds, 0 when the column is missing or empty."""
        text = self.text(column, "0")
        if not _SECONDS.match(text):
            raise self.wrong(f"column {column}: {text[:40]!r} is not a number of seconds", "write 90 or 1.5")
        number = float(text)
        if not 0 <= number <= NUMBER_MAX:
            raise self.wrong(f"column {column}: {text} is out of range", f"0 to {NUMBER_MAX}")
        return number


def read_csv(path: Path, *, needed: tuple[str, ...]) -> Iterator[Row]:
    """Rows of a CSV file with a heading. Raises CalabashError for a missing file, column, cell, or a foreign encoding."""
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
                        hint="the line is broken; quote texts that hold a comma",
                    )
                yield Row(path, reader.line_num, dict(zip(heading, cells, strict=True)))
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise _unreadable(path, f"byte {error.start} is not UTF-8") from error
    except csv.Error as error:
        raise _unreadable(path, str(error)) from error


def read_jsonl(path: Path) -> Iterator[Row]:
    """Rows of a file with one JSON object per line."""
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
                        hint="one object per line",
                    ) from None
                if not isinstance(value, dict):
                    raise CalabashError(
                        f"{path}:{number}: {type(value).__name__} instead of an object",
                        reason=Reason.BAD_FILE,
                        hint="one object per line",
                    )
                yield Row(path, number, value)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise _unreadable(path, f"byte {error.start} is not UTF-8") from error


def _check_heading(path: Path, heading: list[str] | None, needed: tuple[str, ...]) -> None:
    if heading is None:
        raise CalabashError(f"{path}: the file is empty", reason=Reason.BAD_FILE, hint=f"headings: {', '.join(needed)}")
    missing = [name for name in needed if name not in heading]
    if missing:
        raise CalabashError(
            f"{path}:1: missing columns: {', '.join(missing)}",
            reason=Reason.BAD_FILE,
            hint=f"needed are {', '.join(needed)}; found {', '.join(heading[:12])}",
        )
    if len(set(heading)) != len(heading):
        raise CalabashError(f"{path}:1: a heading stands twice", reason=Reason.BAD_FILE, hint="headings are unique")


def _unreadable(path: Path, why: str) -> CalabashError:
    reason = Reason.NOT_FOUND if "No such file" in why else Reason.BAD_FILE
    return CalabashError(f"{path}: {why}", reason=reason, hint="check the path and that it is a UTF-8 text file")
