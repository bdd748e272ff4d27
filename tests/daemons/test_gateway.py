"""Gateway process of a real pool: its start, its privileges and its end."""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from bench._console_session import ConsoleSession, http_ask, log_in
from tests.daemons.terminal import Terminal
from tests.daemons.world import World, until

from calabash.adapters.host.processes import identify
from calabash.api.gateway import GatewayLimits
from calabash.model.errors import CalabashError

OPTIONS = ("--console", "127.0.0.1:0")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "home", "1xT4", options=OPTIONS)
    made.up()
    yield made
    made.close()


def _address(world: World) -> tuple[str, int]:
    url: str = world.client.get("/v1/status")["console"]
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host, int(port)


def _ask(
    address: tuple[str, int], method: str, path: str, body: str | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(*address, timeout=60)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def _gateways(world: World) -> list[int]:
    """Return the pool's child processes that are its gateway."""
    assert world.daemon is not None
    found = []
    for task in Path(f"/proc/{world.daemon.pid}/task").iterdir():
        with suppress(OSError):
            found += [int(pid) for pid in (task / "children").read_text().split()]
    return [pid for pid in found if b"calabash.gateway" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def _token(world: World, **order: Any) -> str:
    secret: str = world.client.post("/v1/tokens", order)["secret"]
    return secret


def test_a_pool_whose_console_nobody_opens_has_no_gateway_and_the_first_who_comes_is_served(world: World) -> None:
    address = _address(world)
    assert _gateways(world) == []
    status, headers, content = _ask(address, "GET", "/login")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"<form" in content
    (gateway,) = _gateways(world)
    if os.geteuid() == 0:
        status_lines = Path(f"/proc/{gateway}/status").read_text().splitlines()
        said = {line.partition(":")[0]: line.partition(":")[2].split() for line in status_lines}
        assert said["Uid"] == ["63999"] * 4
        assert said["Groups"] == []
        assert said["NoNewPrivs"] == ["1"]


def test_a_login_link_opens_the_console_once_and_a_token_opens_the_api(world: World) -> None:
    address, code = _address(world), _token(world, login=True)
    session = ConsoleSession.begun(address, code)
    shown = session.ask("GET", "/")
    assert (shown.status, b"<h1>Overview</h1>" in shown.content) == (200, True)
    assert log_in(address, code).status == 401
    bearer = f"Bearer {_token(world, note='test')}"
    devices = json.loads(_ask(address, "GET", "/v1/devices", authorization=bearer)[2])
    assert [d["model"] for d in devices["items"]] == ["Tesla T4"]
    queue = json.dumps({"deserved": 1})
    assert _ask(address, "PUT", "/v1/queues/train", queue, authorization=bearer)[0] == 200
    assert "train" in [q["name"] for q in world.client.get("/v1/queues")["items"]]


def test_no_token_and_a_wrong_one_get_nothing_not_even_what_every_local_user_may_see(world: World) -> None:
    address = _address(world)
    for path in ("/v1/status", "/v1/devices", "/v1/queues", "/v1/overview"):
        assert _ask(address, "GET", path)[0] == 401
        assert _ask(address, "GET", path, authorization="Bearer cal_aaaaaaaaaa_nonsense")[0] == 401
    with socket.socket(socket.AF_UNIX) as direct:
        direct.connect(str(world.home / "gateway.sock"))
        direct.sendall(b"GET /v1/status HTTP/1.0\r\n\r\n")
        assert direct.recv(4096).split()[1] == b"401"
    assert (world.home / "gateway.sock").stat().st_mode & 0o777 == 0o600


def test_a_gateway_that_dies_is_started_again_and_one_whose_pool_is_killed_ends(world: World) -> None:
    address = _address(world)
    _ask(address, "GET", "/login")
    (first,) = _gateways(world)
    os.kill(first, signal.SIGKILL)
    until(lambda: first not in _gateways(world), what="the pool to have seen that it died")
    assert _ask(address, "GET", "/login")[0] == 200
    (second,) = _gateways(world)
    running = identify(second)
    assert second != first
    world.kill()
    until(lambda: identify(second) != running, what="the gateway to end with its pool")
    with pytest.raises(OSError, match="refused"):
        _ask(address, "GET", "/login")


def test_session_outlives_a_restart_of_the_gateway_and_no_recorded_request_does(world: World) -> None:
    session = ConsoleSession.begun(_address(world), _token(world, login=True))
    assert session.ask("GET", "/queues").status == 200
    unused = session.proved("POST", "/do/queue", b"name=night&guarantee=0")
    (first,) = _gateways(world)
    os.kill(first, signal.SIGKILL)
    until(lambda: first not in _gateways(world), what="the pool to have seen that it died")
    replayed = http_ask(session.address, "POST", "/do/queue", b"name=night&guarantee=0", headers=unused)
    assert replayed.status == 401
    assert session.ask("GET", "/queues").status == 200
    assert "night" not in [q["name"] for q in world.client.get("/v1/queues")["items"]]


def _take_port(address: tuple[str, int], option: int) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, option, 1)
        other.bind(address)
        other.listen(1)


def test_port_cannot_be_bound_by_another_while_the_gateway_is_dead(world: World) -> None:
    address = _address(world)
    _ask(address, "GET", "/login")
    (first,) = _gateways(world)
    os.kill(first, signal.SIGSTOP)
    try:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            with pytest.raises(OSError, match="in use"):
                _take_port(address, option)
    finally:
        os.kill(first, signal.SIGKILL)
    until(lambda: first not in _gateways(world), what="the pool to have seen that it died")
    with pytest.raises(OSError, match="in use"):
        _take_port(address, socket.SO_REUSEADDR)
    assert _ask(address, "GET", "/login")[0] == 200


def test_session_and_login_code_end_with_the_pool(world: World) -> None:
    address, unused = _address(world), _token(world, login=True)
    session = ConsoleSession.begun(address, _token(world, login=True))
    assert session.ask("GET", "/").status == 200
    for path in ("/v1/me", "/v1/queues"):
        assert _ask(address, "GET", path, authorization=f"Bearer {session.id}")[0] in {401, 403}
        assert _ask(address, "GET", path, authorization=f"Bearer cal_{session.id}_")[0] == 401
        assert _ask(address, "GET", path, calabash_session=session.id)[0] == 401
    world.kill()
    world.options = ("--console", f"{address[0]}:{address[1]}")
    world.up()
    assert session.ask("GET", "/").status == 401
    assert log_in(address, unused).status == 401


def test_going_down_takes_the_gateway_along(world: World) -> None:
    _ask(_address(world), "GET", "/login")
    (gateway,) = _gateways(world)
    running = identify(gateway)
    world.client.post("/v1/shutdown", {"force": True})
    assert world.daemon is not None
    world.daemon.wait(60)
    assert identify(gateway) != running
    assert not (world.home / "gateway.sock").exists()


def test_a_port_that_is_taken_leaves_the_pool_up_and_says_so(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        there = f"127.0.0.1:{taken.getsockname()[1]}"
        world = World(tmp_path / "home", "1xT4", options=("--console", there))
        try:
            status = world.up()
            assert status["console"] == ""
            assert there in status["console_failure"]
            assert "already in use" in status["console_failure"]
            assert [d["model"] for d in world.devices()] == ["Tesla T4"]
        finally:
            world.close()


@pytest.mark.parametrize(
    ("listen", "said"),
    [("0.0.0.0:0", "without TLS"), ("nonsense", "is not HOST:PORT"), ("127.0.0.1:70000", "is not HOST:PORT")],
)
def test_an_address_that_cannot_be_meant_is_refused_at_the_start(tmp_path: Path, listen: str, said: str) -> None:
    world = World(tmp_path / "home", "1xT4", options=("--console", listen))
    try:
        with pytest.raises(AssertionError, match=said):
            world.up()
    finally:
        world.close()


def test_without_a_console_there_is_neither_a_socket_for_it_nor_a_gateway(tmp_path: Path) -> None:
    world = World(tmp_path / "home", "1xT4")
    try:
        status = world.up()
        assert (status["console"], status["console_failure"]) == ("", "")
        assert not (world.home / "gateway.sock").exists()
    finally:
        world.close()


def test_a_program_cannot_be_entered_from_the_network(world: World) -> None:
    bearer = f"Bearer {_token(world)}"
    body = json.dumps({"command": ["true"], "enter": True})
    status, _, content = _ask(_address(world), "POST", "/v1/allocations", body, authorization=bearer)
    assert status >= 400, content
    assert status < 500, content
    with pytest.raises(CalabashError):
        world.client.get("/v1/allocations/none/why")


def test_who_watches_hears_of_a_change_as_it_happens(world: World) -> None:
    connection = http.client.HTTPConnection(*_address(world), timeout=60)
    connection.request("GET", "/v1/watch?kinds=queues", headers={"Authorization": f"Bearer {_token(world)}"})
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("content-type")) == (200, "text/event-stream")
    while b"nothing new" not in answer.readline():
        pass
    world.client.put("/v1/queues/seen", {"deserved": 1})
    while (line := answer.readline()) and not line.startswith(b"data: "):
        pass
    assert json.loads(line.removeprefix(b"data: ")) == {"kind": "queues", "name": "seen", "change": "added"}
    connection.close()


def test_waiting_requests_of_all_tokens_of_a_user_leave_room_for_another_user(world: World) -> None:
    address, most = _address(world), GatewayLimits().waiting_per_user
    for name in ("ann", "bob"):
        world.client.put(f"/v1/users/{name}", {})
    tokens = [_token(world, user="ann") for _ in range(4)]
    after = json.loads(_ask(address, "GET", "/v1/changes", authorization=f"Bearer {tokens[0]}")[2])["next"]

    def ann_is_answered() -> int:
        return _ask(address, "GET", "/v1/me", authorization=f"Bearer {tokens[0]}")[0]

    def waits(number: int) -> socket.socket:
        line = socket.create_connection(address, timeout=60)
        head = f"GET /v1/changes?after={after}&wait_s=30 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        line.sendall(f"{head}Authorization: Bearer {tokens[number % 4]}\r\n\r\n".encode())
        return line

    waiting = [waits(number) for number in range(most)]

    def share_is_taken() -> bool:
        # On a slow machine the first requests are answered before the last ones are read: they ask again.
        for line in select.select(waiting, [], [], 0)[0]:
            line.close()
            number = waiting.index(line)
            waiting[number] = waits(number)
        return ann_is_answered() == 429

    until(share_is_taken, what="the share of ann to be taken")
    assert _ask(address, "GET", "/v1/me", authorization=f"Bearer {_token(world, user='bob')}")[0] == 200
    for line in waiting:
        line.close()
    until(lambda: ann_is_answered() == 200, within_s=10, what="the places of who has hung up to be free")


def test_the_command_line_works_from_elsewhere_with_a_token_and_says_what_does_not(
    world: World, tmp_path: Path
) -> None:
    url = world.client.get("/v1/status")["console"]
    far = Terminal(tmp_path / "nowhere", tmp_path, XDG_CONFIG_HOME=str(tmp_path / "config"))
    assert f"calabash login {url}" in far.refused(4, "--server", url, "ps")
    link = f"{url}/login#{_token(world, login=True)}"
    assert "logged in" in far("login", url, stdin=f"{link}\n").stdout
    assert "Tesla T4" in far("--server", url, "smi").stdout
    far("--server", url, "queue", "create", "far", "--guarantee", "1")
    assert "far" in [q["name"] for q in world.client.get("/v1/queues")["items"]]
    there = Terminal(tmp_path / "nowhere", tmp_path, XDG_CONFIG_HOME=str(tmp_path / "config"), CALABASH_SERVER=url)
    assert str(world.home) in there("status").stdout
    for words in (("run", "--", "true"), ("up",), ("down",)):
        assert "on the pool's machine only" in there.refused(2, *words)
    far("login", url, "--forget")
    far.refused(4, "--server", url, "ps")
