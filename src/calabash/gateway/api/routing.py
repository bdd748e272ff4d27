"""Which route of the API a request asks for. Only what ``calabash.api`` lists is passed on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from calabash.api.route import Route

# Names with slashes (queues of tenants) stand percent-encoded or plain in a path, as the pool itself takes them.
_WORD, _NAME = r"[^/]+", r".+"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """``route`` None: no such path, or, with ``allowed``, no such method of it."""

    route: Route | None
    allowed: tuple[str, ...] = ()


class RouteTable:
    """The routes that are passed on."""

    def __init__(self, routes: Sequence[Route]) -> None:
        patterns: dict[str, tuple[re.Pattern[str], dict[str, Route]]] = {}
        for route in routes:
            patterns.setdefault(route.path, (_pattern(route.path), {}))[1][route.method] = route
        plain = sorted(patterns, key=lambda path: ("{" in path, -len(path)))  # the more said, the earlier
        self._entries = [patterns[path] for path in plain]

    def find(self, method: str, path: str) -> Found:
        """``path`` without a query."""
        if any(unquote(word) in {"", ".", ".."} for word in path.split("/")[1:]):  # nobody's name, and no way around
            return Found(route=None)
        allowed: set[str] = set()
        for pattern, by_method in self._entries:
            if pattern.fullmatch(path):
                if method in by_method:
                    return Found(route=by_method[method])
                allowed.update(by_method)
        return Found(route=None, allowed=tuple(sorted(allowed)))


def _pattern(path: str) -> re.Pattern[str]:
    parts = [_part(word, last=i == path.count("/")) for i, word in enumerate(path.split("/"))]
    return re.compile("/".join(parts))


def _part(word: str, *, last: bool) -> str:
    if not word.startswith("{"):
        return re.escape(word)
    return _NAME if last and word == "{name}" else _WORD
