"""Match the path and method of a request to a route of the API; only routes in ``calabash.api`` are forwarded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from calabash.api.route import Route

# Names with slashes (queues of tenants) may be percent-encoded or plain in a path, as in the pool.
_WORD, _NAME = r"[^/]+", r".+"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteMatch:
    """Result of a search for a route.

    Args:
        route: the route; None if the path is unknown or the method is not allowed.
        allowed: methods of the path if it is known but ``route`` is None; () otherwise.
    """

    route: Route[Any] | None
    allowed: tuple[str, ...] = ()


class RouteTable:
    """Table of the routes that are forwarded."""

    def __init__(self, routes: Sequence[Route[Any]]) -> None:
        patterns: dict[str, tuple[re.Pattern[str], dict[str, Route[Any]]]] = {}
        for route in routes:
            patterns.setdefault(route.path, (_pattern(route.path), {}))[1][route.method] = route
        plain = sorted(patterns, key=lambda path: ("{" in path, -len(path)))  # more specific paths first
        self._entries = [patterns[path] for path in plain]

    def find(self, method: str, path: str) -> RouteMatch:
        """Return the match of a method and a path without query."""
        if any(unquote(word) in {"", ".", ".."} for word in path.split("/")[1:]):  # path traversal
            return RouteMatch(route=None)
        allowed: set[str] = set()
        for pattern, by_method in self._entries:
            if pattern.fullmatch(path):
                if method in by_method:
                    return RouteMatch(route=by_method[method])
                allowed.update(by_method)
        return RouteMatch(route=None, allowed=tuple(sorted(allowed)))


def _pattern(path: str) -> re.Pattern[str]:
    parts = [_part(word, last=i == path.count("/")) for i, word in enumerate(path.split("/"))]
    return re.compile("/".join(parts))


def _part(word: str, *, last: bool) -> str:
    if not word.startswith("{"):
        return re.escape(word)
    return _NAME if last and word == "{name}" else _WORD
