"""Declare HTTP handlers, and find the handler of a request by path and method."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calabash.api.endpoints import Endpoint

JSON = "application/json"
_ARGUMENTS = frozenset({"request", "state"})

Function = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """Handler of one method of one path.

    Args:
        method: HTTP method.
        path: path, with a variable segment as ``{name}``.
        function: called with those of its arguments that it has: ``request``, ``state`` (that of the application), and
            each variable segment, under its name. Its result is the content of the reply.
        status: HTTP status of a successful reply.
        media_type: type of the reply, unless the function returns a whole response.
        slashes: the last variable segment may contain slashes after decoding.
        arguments: names of the function's arguments.

    Raises TypeError if the function has another argument.
    """

    method: str
    path: str
    function: Function
    status: int = 200
    media_type: str = JSON
    slashes: bool = False
    arguments: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        arguments = tuple(inspect.signature(self.function).parameters)
        for name in arguments:
            if name not in _ARGUMENTS and name not in _variables(self.path):
                raise TypeError(f"{self.method} {self.path} has no variable segment {name!r}")
        object.__setattr__(self, "arguments", arguments)


@dataclass(frozen=True, slots=True)
class Match:
    """Result of a search for a path.

    Args:
        template: the path as it was declared, with its variable segments as ``{name}``.
        methods: the handlers of the path by method.
        variables: values of the variable segments.
    """

    template: str
    methods: Mapping[str, Handler]
    variables: Mapping[str, str]


class RouteTable:
    """Table of handlers.

    A path without variable segments is preferred to one with them, and a fixed segment to a variable one.

    Raises ValueError if two handlers have the same method and path.
    """

    def __init__(self, handlers: Sequence[Handler]) -> None:
        found: dict[str, dict[str, Handler]] = {}
        for handler in handlers:
            methods = found.setdefault(handler.path, {})
            if handler.method in methods:
                raise ValueError(f"two handlers for {handler.method} {handler.path}")
            methods[handler.method] = handler
        self._fixed = {path: Match(path, methods, {}) for path, methods in found.items() if not _variables(path)}
        variable = sorted(set(found) - set(self._fixed), key=lambda path: [part[:1] == "{" for part in path.split("/")])
        self._variable = [(_pattern(path, found[path]), path, found[path]) for path in variable]

    def find(self, path: str) -> Match | None:
        """Return the match of a decoded, normalized path; None if there is none."""
        if (fixed := self._fixed.get(path)) is not None:
            return fixed
        for pattern, template, methods in self._variable:
            if (match := pattern.fullmatch(path)) is not None:
                return Match(template, methods, match.groupdict())
        return None


def normalized(path: str) -> str:
    """Return a path without empty segments and without a slash at its end."""
    return "/" + "/".join(part for part in path.split("/") if part)


def handles(endpoint: Endpoint) -> Callable[[Function], Handler]:
    """Return a decorator that makes a function the handler of an endpoint of the API."""

    def bind(function: Function) -> Handler:
        return Handler(
            method=endpoint.method,
            path=endpoint.path,
            function=function,
            status=endpoint.status,
            slashes=endpoint.slashes,
        )

    return bind


def get(path: str, *, media_type: str = JSON) -> Callable[[Function], Handler]:
    """Return a decorator that makes a function the handler of GET requests for a path outside the API."""
    return lambda function: Handler(method="GET", path=path, function=function, media_type=media_type)


def post(path: str) -> Callable[[Function], Handler]:
    """Return a decorator that makes a function the handler of POST requests for a path outside the API."""
    return lambda function: Handler(method="POST", path=path, function=function)


def _variables(path: str) -> list[str]:
    return [part[1:-1] for part in path.split("/") if part[:1] == "{"]


def _pattern(path: str, methods: Mapping[str, Handler]) -> re.Pattern[str]:
    variables = _variables(path)
    slashes = any(handler.slashes for handler in methods.values())
    pattern = re.escape(path)
    for number, name in enumerate(variables, start=1):
        text = "(?s:.+)" if slashes and number == len(variables) else "[^/]+"
        pattern = pattern.replace(re.escape("{" + name + "}"), f"(?P<{name}>{text})")
    return re.compile(pattern)
