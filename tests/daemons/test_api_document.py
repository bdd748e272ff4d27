"""OpenAPI document against a real pool: schemathesis sends valid and invalid requests with the token of each role.

No request may cause an internal error, and each answer must have a status and a body that the document permits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.daemons.network import Network, network

from calabash.api.openapi import openapi
from calabash.model.tenancy import Role

PATIENCE_S = 60.0  # bounds the time of an answer on a busy machine
EXAMPLES = 16  # of each operation, by each role in turn
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
SCHEMA: Any = schemathesis.openapi.from_dict(openapi())
OPERATIONS: dict[str, Any] = {
    f"{found.ok().method.upper()} {found.ok().path}": found.ok() for found in SCHEMA.get_all_operations()
}
KNOWN = {
    "kind": "vpc",
    "tenant": "vision",
    "project": "train",
    "user": "member",
    "devices id": "0",
    "queues name": "default",
}
WHO = ("admin", "operator", "viewer", "chief", "member", "guest", "stranger", "reader")


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with network(tmp_path_factory.mktemp("document") / "home") as made:
        made.world.client.put("/v1/tenants/vision", {"guarantee": 1})
        made.world.client.put("/v1/tenants/vision/projects/train", {})
        made.world.client.put("/v1/tenants/spare", {})
        made.world.client.put("/v1/tenants/spare/projects/spare", {})
        made.person("nobody.spare")
        for name, role in (("admin", Role.ADMIN), ("operator", Role.OPERATOR), ("viewer", Role.VIEWER)):
            made.person(name, role)
        for name, role in (("chief", Role.TENANT_ADMIN), ("member", Role.MEMBER), ("guest", Role.VIEWER)):
            made.person(name, role, "vision")
        made.person("stranger")
        made.person("reader", Role.ADMIN)
        made.tokens["reader"] = made.issue("reader", scopes=["read"])["secret"]
        yield made


@pytest.mark.parametrize("name", OPERATIONS)
def test_answers_are_those_of_the_document_whatever_is_asked(net: Network, name: str) -> None:
    operation, url = OPERATIONS[name], net.url
    turns = zip(itertools.cycle(WHO), itertools.count(), strict=False)
    modes = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode))

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=modes)
    def asked(case: Any) -> None:
        who, number = next(turns)
        token = net.issue(who)["secret"] if name == "DELETE /v1/sessions/current" else net.tokens[who]
        _bounded(name, case, who)
        if number % 16 < len(WHO):  # each role in turn
            _known(name, case)
        headers = {"Authorization": f"Bearer {token}"}
        case.call_and_validate(base_url=url, headers=headers, checks=CHECKS, timeout=PATIENCE_S)

    asked()
    assert net.world.client.get("/v1/status")["pid"]


def _known(name: str, case: Any) -> None:
    """Set the parameters of a request to names of existing objects, so that not all answers are "not found"."""
    names = KNOWN | (
        {"tenant": "spare", "project": "spare", "user": "nobody.spare"} if name.startswith("DELETE") else {}
    )
    for field in case.path_parameters or {}:
        area = name.split("/")[2]
        case.path_parameters[field] = names.get(f"{area} {field}", names.get(field, "spare"))
    if name == "GET /v1/usage":
        case.query = {"from": "0", "to": "4e9", "by": "tenant"}


def _bounded(name: str, case: Any, who: str) -> None:
    """Change a request that would wait for an hour or end the pool into one that does not."""
    if (
        name == "POST /v1/allocations"
        and isinstance(case.body, dict)
        and isinstance(case.body.get("wait_s"), (int, float))
    ):
        case.body["wait_s"] = min(case.body["wait_s"], 0)
    if name in {"GET /v1/changes", "GET /v1/networks/snapshot"} and case.query:
        case.query.pop("wait_s", None)
        case.query.pop("wait", None)
    if name == "POST /v1/shutdown" and who == "admin":
        case.body = {"force": "no"}
