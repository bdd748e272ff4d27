"""Tests of the endpoints of the API and of their use."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from calabash.api import endpoints
from calabash.api.endpoints import Endpoint
from calabash.api.routes import ROUTES
from calabash.model.errors import CalabashError

SOURCES = Path(__file__).resolve().parents[3] / "src/calabash"
DECLARED = ("api/endpoints.py", "api/lease_endpoints.py", "api/collected.py")
GATEWAY_ALONE = {endpoints.DOCUMENT, endpoints.WATCH}


def test_values_are_percent_encoded_as_one_segment_each() -> None:
    assert endpoints.SHOW_STATUS.at() == "/v1/status"
    assert endpoints.SHOW_PROJECT.at("a/b", "ü {tenant}") == "/v1/tenants/a%2Fb/projects/%C3%BC%20%7Btenant%7D"


def test_query_is_percent_encoded() -> None:
    target = endpoints.RELEASE.at("a", query={"force": 1, "x": "a&b=ü"})
    assert target == "/v1/allocations/a?force=1&x=a%26b%3D%C3%BC"


def test_empty_value_is_refused() -> None:
    with pytest.raises(CalabashError, match="a name is empty"):
        endpoints.DELETE_USER.at("")


@pytest.mark.parametrize("values", [(), ("a", "b")])
def test_wrong_number_of_values_is_an_error(values: tuple[str, ...]) -> None:
    with pytest.raises(TypeError, match=re.escape("DELETE /v1/users/{user} takes 1 values")):
        endpoints.DELETE_USER.at(*values)


def test_every_endpoint_has_one_route() -> None:
    declared = [value for value in vars(endpoints).values() if isinstance(value, Endpoint)]
    assert len({repr(endpoint) for endpoint in declared}) == len(declared)
    assert {route.endpoint for route in ROUTES} == set(declared) - GATEWAY_ALONE
    assert len(ROUTES) == len(declared) - len(GATEWAY_ALONE)


def test_paths_of_the_api_are_written_only_where_endpoints_are_declared() -> None:
    found = []
    for file in SOURCES.rglob("*.py"):
        name = str(file.relative_to(SOURCES))
        tree = ast.parse(file.read_text())
        texts = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and isinstance(node.body[0], ast.Expr)
        }
        found += [
            f"{name}:{node.lineno}: {node.value}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in texts
            and re.match(r"/v1/[a-z]", node.value)
            and not name.startswith(DECLARED)
        ]
    assert found == []


CLIENTS = {
    "ApiClient": {"send", "items", "call"},
    "PoolClient": {"call"},
    "ServerClient": {"call"},
    "RemoteServerClient": {"call"},
    "OwnerSocketClient": {"call"},
    "AsyncPoolClient": {"send", "items", "call"},
    "PoolStreams": {"call", "ask", "close"},  # ``ask`` forwards requests of the gateway
}


def test_clients_have_only_the_methods_that_the_product_uses() -> None:
    methods: dict[str, set[str]] = {}
    by_endpoint, by_path = set(), []
    for file in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and CLIENTS.keys() & {node.name, *map(ast.unparse, node.bases)}:
                functions = [one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
                methods[node.name] = {name for name in functions if not name.startswith("_")}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                first = ast.unparse(node.args[0])
                if re.fullmatch(r"(lease_)?endpoints\.[A-Z_]+", first):
                    by_endpoint.add(node.func.attr)
                elif node.func.attr == "call" and re.fullmatch(r"'(GET|POST|PUT|DELETE)'|\*.*", first):
                    by_path.append(f"{file}:{node.lineno}")
    assert methods == CLIENTS
    assert by_endpoint == {"send", "items"}
    assert by_path == []
