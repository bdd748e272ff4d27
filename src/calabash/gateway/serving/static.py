"""Static files of the console, read once when the gateway starts.

Their URLs contain a hash of the content, so browsers may cache them forever. The URLs also contain the random start ID
of the gateway. Another program may have used the same port before and served files that a browser has cached; the
browser does not use these, because their URLs differ.
"""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PREFIX = "/static/"
FOREVER = "public, max-age=31536000, immutable"
GATEWAY = Path(__file__).parent.parent
OWN = GATEWAY / "web" / "static"
VENDORED = GATEWAY.parent / "_web"  # python -m tools.web


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticFile:
    """Content and media type of a static file."""

    content: bytes
    kind: str


class StaticFiles:
    """Static files of some directories. If several directories have a file of the same name, the first one is used.

    Args:
        directories: directories to read, without subdirectories.
        start: random ID of the gateway's start, which each URL contains.
    """

    def __init__(self, directories: Sequence[Path] = (OWN, VENDORED), *, start: str = "") -> None:
        self._prefix = f"{PREFIX}{start}/" if start else PREFIX
        self._files: dict[str, StaticFile] = {}
        self._urls: dict[str, str] = {}
        for directory in directories:
            for path in sorted(directory.iterdir()) if directory.is_dir() else ():
                if path.is_file() and not path.name.startswith(".") and path.name not in self._urls:
                    self._add(path)

    def _add(self, path: Path) -> None:
        content = path.read_bytes()
        stem, _, ending = path.name.rpartition(".")
        hashed = f"{stem}.{hashlib.sha256(content).hexdigest()[:12]}.{ending}"
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        if kind.startswith("text/") or kind.endswith(("javascript", "json", "svg+xml")):
            kind += "; charset=utf-8"
        self._files[hashed] = StaticFile(content=content, kind=kind)
        self._urls[path.name] = self._prefix + hashed

    def url(self, name: str) -> str:
        """Return the URL of a file.

        A missing file is no error: its URL is answered with 404, and the browser shows the page without it.
        """
        return self._urls.get(name, PREFIX + name)

    def find(self, path: str) -> StaticFile | None:
        """Return the file at a path below ``PREFIX``, or None."""
        return self._files.get(path.rpartition("/")[2])
