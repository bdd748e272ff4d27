"""Bind Litestar handlers to the endpoints of the API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from litestar import HttpMethod, route
from litestar.handlers import HTTPRouteHandler

from calabash.api.endpoints import Endpoint


def handles(endpoint: Endpoint) -> Callable[[Callable[..., Any]], HTTPRouteHandler]:
    """Return a decorator that makes a function the handler of an endpoint.

    The function takes each variable segment of the path as an argument of that name, of type ``FromPath[str]``. A
    variable that may contain slashes begins with one, because Litestar reads it as an absolute path.
    """
    path = endpoint.path
    for number, variable in enumerate(endpoint.variables, start=1):
        kind = "path" if endpoint.slashes and number == len(endpoint.variables) else "str"
        path = path.replace("{" + variable + "}", f"{{{variable}:{kind}}}")
    return route(path, http_method=[HttpMethod(endpoint.method)], status_code=endpoint.status)
