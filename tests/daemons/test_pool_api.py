"""HTTP API against malformed bodies and bytes."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.daemons.world import World
from tests.examples import examples

from calabash.model.errors import CalabashError, Reason

FUZZ = settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)
FIELDS = ("gpus", "memory_mib", "cores", "mode", "policy", "tenant", "queue", "priority", "gang", "gang_size")
fields = st.sampled_from([*FIELDS, "models", "command", "wait_s", "uid"])


def _raw(world: World, data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(str(world.home / "pool.sock"))
        connection.sendall(data)
        answer = b""
        while chunk := connection.recv(1 << 16):
            answer += chunk
    return answer


def _post(world: World, path: str, body: bytes) -> tuple[int, Any]:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    answer = _raw(world, head.encode() + body)
    first, _, content = answer.partition(b"\r\n\r\n")
    return int(first.split()[1]), json.loads(content)


@FUZZ
@given(body=st.dictionaries(fields, json_values, min_size=1, max_size=5))
def test_a_body_of_nonsense_gets_a_reason_and_never_a_stack(world: World, body: dict[str, Any]) -> None:
    body.pop("wait_s", None)
    status, answer = _post(world, "/v1/allocations", json.dumps(body).encode())
    assert status in {201, 400, 404, 409}, answer
    if status == 201:
        world.client.delete(f"/v1/allocations/{answer['id']}")
    else:
        assert set(answer) == {"reason", "message", "hint"}
        assert answer["reason"] in set(Reason)


@FUZZ
@given(body=st.binary(max_size=200))
def test_bytes_that_are_no_json_are_refused(world: World, body: bytes) -> None:
    for path in ("/v1/allocations", "/v1/shutdown", "/v1/allocations/a1/started"):
        if body.strip() in {b"", b"{}"}:
            continue
        status, answer = _post(world, path, body)
        assert status in {400, 404}, answer
    assert world.client.get("/v1/status")["devices"] == 2


@pytest.mark.parametrize(
    "path",
    ["/v1/allocations/..%2f..%2fpool.db", "/v1/allocations/%00", "/v1/allocations/" + "a" * 5000, "/v1/allocations/é"],
)
def test_an_id_that_is_a_path_finds_nothing(world: World, path: str) -> None:
    for method in ("GET", "DELETE"):
        target = path + ("/why" if method == "GET" else "?force=1")
        answer = _raw(world, f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert answer.split()[1] in {b"400", b"404"}, answer[:200]
    assert (world.home / "pool.db").exists()


def test_a_body_that_is_too_large_is_refused_and_not_kept(world: World) -> None:
    with pytest.raises(CalabashError) as caught:
        world.client.post("/v1/allocations", {"command": ["x" * 70_000]})
    assert caught.value.reason is Reason.BAD_REQUEST
    assert "65536" in caught.value.message


def test_a_body_nested_without_end_is_refused(world: World) -> None:
    status, answer = _post(world, "/v1/allocations", b'{"models":' + b"[" * 20_000)
    assert status == 400, answer


def test_a_connection_that_never_finishes_its_request_disturbs_nobody(world: World) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(world.home / "pool.sock"))
        connection.sendall(b"POST /v1/allocations HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert world.client.get("/v1/status")["devices"] == 2
    assert world.client.get("/v1/status")["devices"] == 2


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("PUT", "/v1/status", 405),
        ("GET", "/v1/events?after=x", 400),
        ("GET", "/v1/events?after=-1", 400),
        ("DELETE", "/v1/allocations/a1", 404),
        ("GET", "/v1/allocations/a1/why", 404),
        ("DELETE", "/v1/queues/none", 404),
    ],
)
def test_every_failure_is_json_with_a_reason_a_message_and_a_hint(
    world: World, method: str, path: str, status: int
) -> None:
    answer = _raw(world, f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert int(answer.split()[1]) == status
    content = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert set(content) == {"reason", "message", "hint"}
    assert content["message"]


@pytest.mark.parametrize(
    ("name", "body"),
    [("x", {"deserved": -1}), ("x", {"limit": 0, "deserved": 2}), ("x", {"parent": "none"}), ("..", {}), ("a b", {})],
)
def test_a_queue_that_makes_no_sense_is_refused_and_not_kept(world: World, name: str, body: dict[str, Any]) -> None:
    with pytest.raises(CalabashError):
        world.client.put(f"/v1/queues/{name.replace(' ', '%20')}", body)
    assert [q["name"] for q in world.client.get("/v1/queues")["items"]] == ["default"]


def test_queue_below_the_last_level_is_refused_and_not_kept(world: World) -> None:
    for i in range(1, 33):
        world.client.put(f"/v1/queues/c{i}", {"parent": f"c{i - 1}" if i > 1 else ""})
    with pytest.raises(CalabashError, match="queue c33 is at level 33 of the queue tree, the limit is 32 levels"):
        world.client.put("/v1/queues/c33", {"parent": "c32"})
    world.client.put("/v1/queues/top", {})
    with pytest.raises(CalabashError, match="queue c32 is at level 33"):
        world.client.put("/v1/queues/c1", {"parent": "top"})
    shown = {q["name"]: q["parent"] for q in world.client.get("/v1/queues")["items"]}
    assert (shown["c1"], shown["c32"], "c33" in shown) == ("", "c31", False)


def test_every_route_is_described_and_nothing_else_is() -> None:
    from calabash.api.routes import ROUTES
    from calabash.pool.handlers.application import HANDLERS

    served = {(handler.method, handler.path, handler.status) for handler in HANDLERS}
    assert served == {(route.method, route.path, route.status) for route in ROUTES}


def test_every_reply_is_of_the_shape_that_is_described(world: World) -> None:
    import msgspec

    from calabash.api.routes import ROUTES

    world.client.put("/v1/tenants/shape", {})
    world.client.put("/v1/tenants/shape/projects/part", {})
    world.client.put("/v1/users/far", {})
    world.client.put("/v1/notifications/shape", {"webhook": "https://receiver.example/"})
    vpc = {"kind": "vpc", "name": "shape", "spec": {"cidrs": ["10.0.0.0/16"]}}
    world.client.put("/v1/networks/objects", vpc)
    there = {"{tenant}": "shape", "{project}": "part", "{user}": "far", "/notifications/{name}": "/notifications/shape"}
    there |= {"/objects/{kind}": "/objects/vpc?name=shape"}
    granted = world.client.post("/v1/allocations", {"memory_mib": 500})
    shapes = {r.name: r.reply for r in ROUTES}
    msgspec.convert(granted, shapes["POST /v1/allocations"], strict=True)
    for name, shape in shapes.items():
        method, path = name.split()
        if method == "GET":
            for word, found in there.items():
                path = path.replace(word, found)
            if "{number}" in path or path in ("/v1/jobs/{job}", "/v1/networks/certificates/key"):
                continue  # an invoice needs a draft first; a job and a key have tests of their own
            if path == "/v1/usage":
                path += "?from=0&to=1"
            answer = world.client.get(path.replace("{device}", "0").replace("{allocation}", granted["id"]))
            assert set(answer) == set(shape.__struct_encode_fields__), name
            msgspec.convert(answer, shape)
    world.client.delete("/v1/networks/objects/vpc?name=shape&cascade=true")
    world.client.delete("/v1/notifications/shape")
    world.client.delete("/v1/tenants/shape")
    world.client.delete("/v1/users/far")
    world.client.delete(f"/v1/allocations/{granted['id']}")
