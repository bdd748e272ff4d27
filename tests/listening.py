"""Reader of the tables of listeners in SECURITY.md, for the tests that compare them with the product."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MACHINE, KUBERNETES, OTHERS = "On one machine", "On Kubernetes", "Third-party programs that Calabash starts"
_CODE = re.compile(r"`([^`]+)`")
_MODE = re.compile(r"mode (0\d{3})")


@dataclass(frozen=True)
class ListenerRow:
    """A row of a table, with its cells by the headings of the columns."""

    cells: dict[str, str]

    @property
    def name(self) -> str:
        """Return the text of the first column."""
        return next(iter(self.cells.values()))

    @property
    def modules(self) -> list[str]:
        """Return the files that the last column names."""
        return [word for word in _CODE.findall(list(self.cells.values())[-1]) if word.endswith((".py", ".c"))]

    @property
    def sockets(self) -> list[str]:
        """Return patterns of the Unix sockets below the home; a word in capitals stands for any name. Empty for TCP."""
        where = self.cells["where"]
        return [] if "Unix socket" not in where else [re.sub(r"[A-Z]{3,}", "*", word) for word in _CODE.findall(where)]

    @property
    def mode(self) -> int | None:
        """Return the mode of the Unix socket, or None if the row has none."""
        found = _MODE.search(self.cells["where"])
        return int(found[1], 8) if found else None

    @property
    def address(self) -> str:
        """Return ``HOST:PORT`` of a TCP listener with a default, else ""."""
        found = re.search(r"TCP `([^`]+:\d+)`", self.cells["where"])
        return found[1] if found else ""

    def has_socket(self, path: str) -> bool:
        """Return True if the Unix socket is the row's."""
        return any(fnmatch(path, f"*/{pattern}") for pattern in self.sockets)


def rows(heading: str) -> list[ListenerRow]:
    """Return the rows of the table below a heading of SECURITY.md."""
    text = (ROOT / "SECURITY.md").read_text().split(f"### {heading}\n", 1)[1]
    table = text[text.index("|") :].split("\n\n", 1)[0].splitlines()
    titles, _, *lines = ([cell.strip() for cell in line.strip().strip("|").split("|")] for line in table)
    return [ListenerRow(dict(zip(titles, cells, strict=True))) for cells in lines]


def text_of(heading: str) -> str:
    """Return the text below a heading of SECURITY.md, up to the next one."""
    return re.split(r"\n##", (ROOT / "SECURITY.md").read_text().split(f" {heading}\n", 1)[1], maxsplit=1)[0]
