"""The tables of SECURITY.md about what listens, as the tests of them read them."""

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
    """A row of a table by the headings of its columns."""

    cells: dict[str, str]

    @property
    def name(self) -> str:
        """The text of the first column."""
        return next(iter(self.cells.values()))

    @property
    def modules(self) -> list[str]:
        """Files that the last column names."""
        return [word for word in _CODE.findall(list(self.cells.values())[-1]) if word.endswith((".py", ".c"))]

    @property
    def sockets(self) -> list[str]:
        """Names of Unix sockets below the home, a word in capitals standing for any name; empty for TCP."""
        where = self.cells["where"]
        return [] if "Unix socket" not in where else [re.sub(r"[A-Z]{3,}", "*", word) for word in _CODE.findall(where)]

    @property
    def mode(self) -> int | None:
        """The mode of its Unix socket, where it says one."""
        found = _MODE.search(self.cells["where"])
        return int(found[1], 8) if found else None

    @property
    def address(self) -> str:
        """``HOST:PORT`` of a TCP listener with a default, else empty."""
        found = re.search(r"TCP `([^`]+:\d+)`", self.cells["where"])
        return found[1] if found else ""

    def has_socket(self, path: str) -> bool:
        """Return True if the Unix socket is the row's."""
        return any(fnmatch(path, f"*/{pattern}") for pattern in self.sockets)


def rows(heading: str) -> list[ListenerRow]:
    """The rows of the table below a heading of SECURITY.md."""
    text = (ROOT / "SECURITY.md").read_text().split(f"### {heading}\n", 1)[1]
    table = text[text.index("|") :].split("\n\n", 1)[0].splitlines()
    titles, _, *lines = ([cell.strip() for cell in line.strip().strip("|").split("|")] for line in table)
    return [ListenerRow(dict(zip(titles, cells, strict=True))) for cells in lines]


def text_of(heading: str) -> str:
    """All that stands below a heading of SECURITY.md, up to the next one."""
    return re.split(r"\n##", (ROOT / "SECURITY.md").read_text().split(f" {heading}\n", 1)[1], maxsplit=1)[0]
