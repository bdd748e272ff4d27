"""Two tenants of one pool: neither can access the other's objects by ID, token or role, or by any route that reads."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.api_client import PathClient
from tests.daemons.test_pool_users import refusal_of
from tests.daemons.users import ANN, BOB, as_user, open_way
from tests.daemons.world import World, until

from calabash.api.routes import ROUTES
from calabash.model.errors import CalabashError, Reason

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")

SECRETS = ("speech", "asr-whisper", "speech-command", "speech-gang", BOB.name)


@dataclass
class Teams:
    """Tenants ``vision`` of ann and ``speech`` of bob; bob has a running program and a waiting request."""

    world: World
    ann: str  # tokens
    bob: str
    running: str = ""
    waiting: str = ""
    secrets: list[str] = field(default_factory=list)

    def ask(self, method: str, path: str, body: Any = None, *, token: str) -> tuple[int, str]:
        """Send a request with a token; return status and text of the answer."""
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.0\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(data)}\r\n\r\n"
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(str(self.world.home / "pool.sock"))
            connection.sendall(head.encode() + data)
            answer = b"".join(iter(partial(connection.recv, 65536), b""))
        first, _, content = answer.partition(b"\r\n\r\n")
        return int(first.split()[1]), content.decode()

    def reads(self, path: str, *, token: str) -> Any:
        status, text = self.ask("GET", path, token=token)
        assert status == 200, text
        return json.loads(text)


@pytest.fixture
def teams(world: World) -> Iterator[Teams]:
    open_way(world.home)
    root = world.client
    for name, user in (("vision", ANN), ("speech", BOB)):
        root.put(f"/v1/tenants/{name}", {"guarantee": 1, "limit": 2, "users": [user.name]})
    root.put("/v1/tenants/speech/projects/asr-whisper", {"guarantee": 0.5})
    root.put("/v1/members", {"user": BOB.name, "role": "tenant-admin", "tenant": "speech"})
    root.put("/v1/users/far", {"subject": "https://id.test|7"})
    found = Teams(
        world, *(as_user(u, lambda: root.post("/v1/tokens", {"note": "a test"}))["secret"] for u in (ANN, BOB))
    )
    yield found
    for program in world.programs:
        program.kill()
    until(lambda: not root.get("/v1/allocations")["items"], what="everything to be given back")
    for path in (
        "/v1/tenants/vision",
        "/v1/tenants/speech",
        "/v1/users/far",
        f"/v1/users/{BOB.name}",
        f"/v1/users/{ANN.name}",
    ):
        until(partial(_gone, root, path), what=f"{path} to be deleted")


def _gone(root: PathClient, path: str) -> bool:
    """Try to delete an object; return True if it does not exist any more.

    The deletion may be refused for a moment, because the object is in use until its last program has ended.
    """
    try:
        root.delete(path)
    except CalabashError as error:
        return error.reason is Reason.NOT_FOUND
    return True


@pytest.fixture
def busy(teams: Teams) -> Iterator[Teams]:
    """Yield the tenants while bob's has a program and a request that waits."""
    body = {"tenant": "speech", "project": "asr-whisper", "gang": "speech-gang"}
    _, held = teams.world.running("sh", "-c", ": speech-command; exec cat", mode="exclusive", **body)
    answers: list[Any] = []

    def wait() -> None:
        asked = {"tenant": "speech", "gpus": 2, "mode": "exclusive", "wait_s": 60, "command": ["speech-command"]}
        answers.append(refusal_of(lambda: teams.world.client.post("/v1/allocations", asked, timeout_s=90)))

    line = threading.Thread(target=wait)
    line.start()
    pending = until(
        lambda: [a["id"] for a in teams.world.allocations() if a["state"] == "pending"], what="the request to wait"
    )
    teams.running, teams.waiting = held["id"], pending[0]
    teams.secrets = [*SECRETS, teams.running, teams.waiting]
    yield teams
    teams.world.client.delete(f"/v1/allocations/{teams.waiting}")
    line.join(timeout=60)
    assert answers


def _paths(teams: Teams) -> list[str]:
    """Return the paths of all routes with method GET, with the names of bob's objects in them."""
    found = []
    for route in ROUTES:
        if route.method != "GET":
            continue
        for name in ("speech", teams.running, teams.waiting, BOB.name, "0"):
            path = route.path.replace("{tenant}", "speech").replace("{project}", "asr-whisper")
            while "{" in path:
                begin, _, rest = path.partition("{")
                path = begin + name + rest.partition("}")[2]
            if path == "/v1/usage":
                path += "?from=0&to=9e9&by=tenant,project,user"
            found += [path, f"{path}?all=1", f"{path}?ended=1"] if path == "/v1/allocations" else [path]
    return list(dict.fromkeys(found))


def test_no_route_tells_one_tenant_a_name_a_command_or_an_id_of_another(busy: Teams) -> None:
    leaks = []
    for path in _paths(busy):
        status, text = busy.ask("GET", path, token=busy.ann)
        # a refusal repeats only the name in the request
        asked = [] if status == 200 else [secret for secret in busy.secrets if secret in path]
        leaks += [(path, status, secret) for secret in busy.secrets if secret in text and secret not in asked]
        assert status < 500, (path, text)
    assert leaks == []
    local = as_user(
        ANN, lambda: json.dumps([busy.world.client.get("/v1/allocations"), busy.world.client.get("/v1/events")])
    )
    assert [secret for secret in busy.secrets if secret in local] == []
    own = busy.reads("/v1/allocations", token=busy.bob)["items"]
    assert {busy.running, busy.waiting} <= {a["id"] for a in own}, "the owner's own tenant sees it all"


def test_a_refusal_does_not_name_who_is_in_the_way(busy: Teams) -> None:
    told = as_user(
        ANN,
        lambda: str(
            refusal_of(
                lambda: busy.world.client.post("/v1/allocations", {"gpus": 2, "mode": "exclusive", "wait_s": 0.2})
            )
        ),
    )
    assert [secret for secret in busy.secrets if secret in told] == []
    assert "hint:" in told


def test_nothing_of_another_tenant_is_changed_by_id_by_token_or_by_role(busy: Teams) -> None:
    attacks: list[tuple[str, str, Any]] = [
        ("DELETE", f"/v1/allocations/{busy.running}?force=1", None),
        ("DELETE", f"/v1/allocations/{busy.waiting}", None),
        ("POST", f"/v1/allocations/{busy.running}/started", {"pid": 1}),
        ("POST", "/v1/allocations", {"tenant": "speech"}),
        ("PUT", "/v1/tenants/speech", {"limit": None}),
        ("PUT", "/v1/tenants/vision", {"limit": None}),
        ("DELETE", "/v1/tenants/speech", None),
        ("PUT", "/v1/tenants/speech/projects/mine", {}),
        ("DELETE", "/v1/tenants/speech/projects/asr-whisper", None),
        ("PUT", "/v1/members", {"user": ANN.name, "role": "member", "tenant": "speech"}),
        ("PUT", "/v1/members", {"user": ANN.name, "role": "tenant-admin", "tenant": "vision"}),
        ("PUT", "/v1/members", {"user": ANN.name, "role": "admin"}),
        ("PUT", "/v1/users/mine", {"login": "root"}),
        ("PUT", f"/v1/users/{ANN.name}", {"login": "root"}),
        ("DELETE", f"/v1/users/{BOB.name}", None),
        ("POST", "/v1/tokens", {"user": BOB.name}),
        ("POST", "/v1/tokens", {"user": "root", "login": True}),
        ("DELETE", f"/v1/tokens/{busy.bob.split('_')[1]}", None),
        ("POST", "/v1/sessions", {"subject": "https://id.test|7"}),
        ("POST", "/v1/sessions", {"code": busy.bob}),
        ("POST", "/v1/devices/0/drain", {}),
        ("PUT", "/v1/queues/speech", {}),
        ("POST", "/v1/shutdown", {"force": True}),
    ]
    before = busy.reads("/v1/me", token=busy.ann)
    for method, path, body in attacks:
        status, text = busy.ask(method, path, body, token=busy.ann)
        assert status in {401, 403, 404}, (method, path, status, text)
        assert json.loads(text)["hint"], (method, path, text)
    assert busy.reads("/v1/me", token=busy.ann) == before
    assert {busy.running, busy.waiting} <= {a["id"] for a in busy.world.allocations()}
    told = as_user(
        ANN, lambda: refusal_of(lambda: busy.world.client.post("/v1/allocations", {"queue": "speech/default"}))
    )
    assert told.reason in {Reason.NOT_PERMITTED, Reason.NOT_FOUND}


def test_a_token_is_what_its_user_is_until_it_is_revoked(teams: Teams) -> None:
    me = teams.reads("/v1/me", token=teams.ann)
    assert (me["user"], me["tenants"], me["own"]) == (ANN.name, ["vision"], "")
    narrow = json.loads(teams.ask("POST", "/v1/tokens", {"scopes": ["read"]}, token=teams.ann)[1])
    assert teams.ask("POST", "/v1/tokens", {}, token=narrow["secret"])[0] == 403
    assert teams.reads("/v1/tenants", token=narrow["secret"])["items"][0]["name"] == "vision"
    assert teams.ask("DELETE", f"/v1/tokens/{narrow['id']}", token=teams.ann)[0] == 200
    assert teams.ask("GET", "/v1/me", token=narrow["secret"])[0] == 401
    for wrong in ("", "x", narrow["secret"] + "x", f"cal_{narrow['id']}_", "cal__"):
        assert teams.ask("GET", "/v1/me", token=wrong)[0] == 401
    log = (teams.world.home / "pool.log").read_text()
    database = b"".join(p.read_bytes() for p in Path(teams.world.home).glob("pool.db*"))
    for secret in (teams.ann, teams.bob, narrow["secret"]):
        assert secret not in log
        assert secret.encode() not in database


def test_a_login_code_begins_one_session_and_no_second(teams: Teams) -> None:
    code = json.loads(teams.ask("POST", "/v1/tokens", {"login": True}, token=teams.bob)[1])["secret"]
    assert teams.ask("GET", "/v1/tenants/speech", token=code)[0] == 401, "a code is no token"
    begun = [teams.ask("POST", "/v1/sessions", {"code": code}, token=teams.ann) for _ in range(2)]
    assert [status for status, _ in begun] == [201, 401]
    session = json.loads(begun[0][1])["secret"]
    me = teams.reads("/v1/me", token=session)
    assert (me["user"], me["kind"]) == (BOB.name, "session")
    assert teams.ask("DELETE", "/v1/sessions/current", token=session)[0] == 200
    assert teams.ask("GET", "/v1/me", token=session)[0] == 401


def test_an_administrator_of_a_tenant_manages_its_people_and_projects(teams: Teams) -> None:
    assert teams.ask("PUT", "/v1/tenants/speech/projects/tts", {"guarantee": 0.25}, token=teams.bob)[0] == 200
    over = teams.ask("PUT", "/v1/tenants/speech/projects/big", {"guarantee": 4}, token=teams.bob)
    assert over[0] == 409
    assert "4.75 devices, the tenant 1" in over[1]
    body = {"user": "far", "role": "member", "tenant": "speech", "project": "tts"}
    assert teams.ask("PUT", "/v1/members", body, token=teams.bob)[0] == 200
    shown = {u["name"]: u["roles"] for u in teams.reads("/v1/users", token=teams.bob)["items"]}
    assert shown["far"] == [body]
    assert teams.ask("DELETE", "/v1/tenants/speech/projects/tts", token=teams.bob)[0] == 200
    assert "far" not in {u["name"] for u in teams.reads("/v1/users", token=teams.bob)["items"]}


def test_a_request_goes_to_its_tenants_queue_and_is_held_to_its_bounds(teams: Teams) -> None:
    root = teams.world.client
    bounds = {"modes": ["vgpu"], "models": ["A100"], "priority_max": 5, "slices_per_user": 1, "run_s_max": 3600}
    root.put("/v1/tenants/vision", bounds)
    assert root.get("/v1/tenants/vision")["limit"] == 2, "what is not said stays"

    def ask(**body: Any) -> Any:
        return root.post("/v1/allocations", {"memory_mib": 100, "cores": 10, **body})

    for body, words in (
        ({"priority": 6}, "priority -1000 to 5, not 6"),
        ({"mode": "exclusive", "memory_mib": None, "cores": 100}, "mode vgpu, not exclusive"),
        ({"models": ["T4"]}, "models A100, asked T4"),
        ({"run_time_s": 7200.0}, "runs 3600s at most, not 7200s"),
        ({"project": "none"}, "no project none"),
        ({"tenant": ANN.name}, "account of tenant"),
    ):
        told = as_user(ANN, partial(refusal_of, partial(ask, **body)))
        assert words in told.message
        assert told.hint

    def twice() -> tuple[str, str]:
        granted = ask()
        queue = next(a["queue"] for a in root.get("/v1/allocations")["items"] if a["id"] == granted["id"])
        return queue, refusal_of(ask).message

    queue, words = as_user(ANN, twice)
    assert queue == "vision/default"
    assert "has 1 slices and asks for 1, at most 1" in words


def test_a_slice_past_the_longest_run_time_of_its_tenant_is_ended_with_a_notice(teams: Teams) -> None:
    root = teams.world.client
    program, held = teams.world.running("cat", tenant="vision", memory_mib=100)
    root.put("/v1/tenants/vision", {"run_s_max": 0.001})
    until(program.dead, what="the program to be ended")
    ended = until(
        lambda: next((a for a in teams.world.allocations(ended=True) if a["id"] == held["id"] and a["ended_at"]), None),
        what="its end to be in the journal",
    )
    assert ended["reason"] == "run_time"
    assert "tenant vision runs at most" in ended["explanation"]


def test_a_request_that_waits_is_moved_by_those_who_may_use_both_queues(busy: Teams) -> None:
    root, name = busy.world.client, busy.waiting
    root.put("/v1/queues/night", {"users": ["somebody"]})
    path = f"/v1/allocations/{name}/queue"
    assert busy.ask("PUT", f"{path}/speech%2Fasr-whisper", token=busy.ann)[0] == 404, "another tenant's is not there"
    status, text = busy.ask("PUT", f"{path}/night", token=busy.bob)
    assert (status, "may not use queue night" in text) == (403, True)
    assert busy.ask("PUT", f"{path}/vision%2Fdefault", token=busy.bob)[0] == 404, "the other tenant's queue neither"
    assert busy.ask("PUT", f"{path}/speech%2Fnone", token=busy.bob)[0] == 404
    status, text = busy.ask("PUT", f"{path}/speech%2Fasr-whisper", token=busy.bob)
    assert (status, json.loads(text)) == (200, {"id": name, "queue": "speech/asr-whisper"})
    assert root.put(f"{path}/night", {})["queue"] == "night"
    (shown,) = [a for a in busy.world.allocations() if a["id"] == name]
    assert (shown["queue"], shown["tenant"], shown["state"]) == ("night", "speech", "pending")
    until(lambda: [e["allocation"] for e in busy.world.events("moved")] == [name, name], what="both moves to be told")

    def outcomes() -> set[int]:
        lines = root.get("/v1/audit?limit=1000")["items"]
        return {line["outcome"] for line in lines if line["target"] == f"{path}/night"}

    until(lambda: outcomes() >= {200, 403}, what="both lines of the audit log")
    with pytest.raises(CalabashError) as refused:
        root.put(f"/v1/allocations/{busy.running}/queue/night", {})
    assert refused.value.reason is Reason.CONFLICT
