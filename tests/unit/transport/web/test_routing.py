"""Tests of the table of handlers: the handler of a path, and declarations that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from calabash.api.endpoints import Endpoint
from calabash.transport.web.routing import Handler, RouteTable, get, handles, normalized, post


async def _nothing(request: Any) -> None:
    """Handle a request by doing nothing."""


def _table(*paths: str) -> RouteTable:
    return RouteTable([get(path)(_nothing) for path in paths])


@pytest.mark.parametrize(
    ("path", "template"),
    [
        ("/", "/"),
        ("/a", "/a"),
        ("/a/b", "/a/{one}"),
        ("/a/fixed", "/a/fixed"),
        ("/a/x/c", "/a/{one}/c"),
        ("/a/x/fixed", "/a/{one}/{two}"),
        ("/a/fixed/c", "/a/fixed/{two}"),
        ("/a/fixed/fixed", "/a/fixed/{two}"),
        ("/a/new\nline", "/a/{one}"),
        ("/a\n", None),
        ("/A", None),
        ("/b", None),
        ("/a/b/c/d", None),
    ],
)
def test_fixed_segments_are_preferred_to_variable_ones(path: str, template: str | None) -> None:
    table = _table("/a/{one}/{two}", "/a/{one}", "/a/{one}/c", "/a/fixed/{two}", "/a/fixed", "/a", "/")
    found = table.find(path)
    assert (found.template if found else None) == template


def test_only_the_last_variable_of_an_endpoint_with_slashes_contains_slashes() -> None:
    table = RouteTable([handles(Endpoint("PUT", "/a/{one}/queue/{name}", slashes=True))(_nothing)])
    found = table.find("/a/x/queue/team/./night\n/1")
    assert found is not None
    assert found.variables == {"one": "x", "name": "team/./night\n/1"}
    assert table.find("/a/x/y/queue/team") is None
    assert table.find("/a/x/queue") is None


def test_a_dot_of_a_path_is_a_dot() -> None:
    assert _table("/v1/openapi.json/{a}").find("/v1/openapi_json/x") is None


@pytest.mark.parametrize(("path", "shown"), [("//a///b/", "/a/b"), ("", "/"), ("//", "/"), ("a/../b", "/a/../b")])
def test_empty_segments_of_a_path_are_removed(path: str, shown: str) -> None:
    assert normalized(path) == shown


def test_two_handlers_of_one_method_and_path_are_refused() -> None:
    RouteTable([get("/a")(_nothing), post("/a")(_nothing)])
    with pytest.raises(ValueError, match="two handlers for GET /a"):
        RouteTable([get("/a")(_nothing), get("/a")(_nothing)])


def test_argument_that_the_path_does_not_have_is_refused() -> None:
    async def show(request: Any, state: Any, device: str) -> None:
        """Show a device."""

    assert Handler(method="GET", path="/devices/{device}", function=show).arguments == ("request", "state", "device")
    with pytest.raises(TypeError, match=r"GET /devices/\{name\} has no variable segment 'device'"):
        get("/devices/{name}")(show)
