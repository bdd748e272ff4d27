"""Two tenants on one pool: every user of one tenant tries every API route on the objects of the other tenant.

Names, commands and amounts of the victim are unique values, which are searched for in all answers. Each request is made
twice, with the victim's objects and with names that do not exist: the answers may differ only in the name of the
request.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from bench._console_session import ConsoleSession, log_in
from tests.daemons.network import Network, Told, network
from tests.daemons.world import until

from calabash.api.routes import ROUTES
from calabash.model.tenancy import Role

MONTH = "2026-01"
FIGURES = ("0.1373", "1.9317", "7.7731", "4242.42")
# The victim's objects by the word that stands for each in a row, with a name of the same kind that does not exist.
REAL = {
    "tenant": "zqtenant",
    "project": "zqproject",
    "user": "zquser",
    "gang": "zqgang",
    "queue": "zqqueue",
    "vpc": "zqvpc",
}
GHOST = {
    "tenant": "xxtenant",
    "project": "xxproject",
    "user": "xxuser",
    "gang": "xxgang",
    "queue": "xxqueue",
    "vpc": "xxvpc",
}
SECRETS = (
    *REAL.values(),
    "zqsubnet",
    "10.137.193.0",
    "zqnotice",
    "zqcommand",
    "zqnote",
    "zqmail",
    "zqsubject",
    *FIGURES,
)

# Body and query of each route, about the victim; a path takes its names from the same words.
Row = tuple[Any, str]
NOTHING: Row = (None, "")
EMPTY: Row = ({}, "")
ROWS: dict[str, Row] = {
    "GET /v1/status": NOTHING,
    "GET /v1/devices": NOTHING,
    "GET /v1/devices/{device}": NOTHING,
    "POST /v1/devices/{device}/drain": ({"reason": "{tenant}", "evict": True}, ""),
    "POST /v1/devices/{device}/undrain": EMPTY,
    "POST /v1/devices/{device}/mode": ({"mode": "vgpu"}, ""),
    "POST /v1/devices/{device}/settings": ({"replicas": 1}, ""),
    "GET /v1/mig": NOTHING,
    "POST /v1/mig/plan": ({"profiles": ["1g.5gb"]}, ""),
    "POST /v1/mig/apply": ({"layout": {"0": ["1g.5gb"]}}, ""),
    "POST /v1/devices/{device}/test": EMPTY,
    "POST /v1/devices/{device}/reset": EMPTY,
    "GET /v1/allocations": (None, "all=1&after={id}"),
    "POST /v1/allocations": ({"tenant": "{tenant}", "project": "{project}", "gang": "{gang}", "memory_mib": 16}, ""),
    "POST /v1/allocations/{allocation}/started": ({"pid": 1}, ""),
    "POST /v1/allocations/{allocation}/keep": EMPTY,
    "PUT /v1/allocations/{allocation}/queue/{name}": NOTHING,
    "DELETE /v1/allocations/{allocation}": (None, "force=1"),
    "GET /v1/allocations/{allocation}/environment": NOTHING,
    "GET /v1/allocations/{allocation}/why": NOTHING,
    "GET /v1/queues": NOTHING,
    "PUT /v1/queues/{name}": ({"parent": "{tenant}", "deserved": 1, "users": ["{user}"]}, ""),
    "DELETE /v1/queues/{name}": NOTHING,
    "GET /v1/scenario": NOTHING,
    "GET /v1/events": (None, "after=0&limit=1000"),
    "POST /v1/shutdown": ({"force": True}, ""),
    "GET /v1/audit": (None, "after=0"),
    "GET /v1/audit/verify": NOTHING,
    "GET /v1/overview": NOTHING,
    "GET /v1/counters": NOTHING,
    "GET /v1/tenants": NOTHING,
    "GET /v1/tenants/{tenant}": NOTHING,
    "PUT /v1/tenants/{tenant}": ({"limit": 0, "users": ["mallory"]}, ""),
    "DELETE /v1/tenants/{tenant}": NOTHING,
    "GET /v1/tenants/{tenant}/projects": NOTHING,
    "GET /v1/tenants/{tenant}/projects/{project}": NOTHING,
    "PUT /v1/tenants/{tenant}/projects/{project}": ({"weight": 9}, ""),
    "DELETE /v1/tenants/{tenant}/projects/{project}": NOTHING,
    "GET /v1/users": NOTHING,
    "GET /v1/users/{user}": NOTHING,
    "PUT /v1/users/{user}": ({"email": "mallory@x"}, ""),
    "DELETE /v1/users/{user}": NOTHING,
    "PUT /v1/members": ({"user": "mallory", "role": "tenant-admin", "tenant": "{tenant}"}, ""),
    "DELETE /v1/members": (None, "user={user}&tenant={tenant}"),
    "GET /v1/tokens": NOTHING,
    "POST /v1/tokens": ({"user": "{user}"}, ""),
    "DELETE /v1/tokens/{token}": NOTHING,
    "POST /v1/sessions": ({"subject": "zqsubject"}, ""),
    "DELETE /v1/sessions/current": (None, "user={user}"),
    "GET /v1/quota": NOTHING,
    "GET /v1/me": NOTHING,
    "GET /v1/simulator": NOTHING,
    "POST /v1/simulator/faults": ({"gpu": "0", "fault": "lost"}, ""),
    "GET /v1/usage": (None, "by=tenant,project,user,device,model,mode&from=0&to=4e9"),
    "GET /v1/tariffs": NOTHING,
    "PUT /v1/tariffs": ({"name": "t", "currency": "EUR", "valid_from": "2026-01-01", "tenants": ["{tenant}"]}, ""),
    "GET /v1/invoices": (None, "tenant={tenant}"),
    "POST /v1/invoices": ({"month": MONTH, "tenant": "{tenant}"}, ""),
    "GET /v1/invoices/{number}": NOTHING,
    "POST /v1/invoices/{number}/issue": EMPTY,
    "POST /v1/invoices/{number}/void": EMPTY,
    "POST /v1/invoices/{number}/credit": ({"amount": "1.00", "reason": "goodwill"}, ""),
    "GET /v1/invoices/{number}/items": NOTHING,
    "GET /v1/invoices/{number}/verify": NOTHING,
    "GET /v1/changes": (None, "after=1"),
    "GET /v1/jobs": NOTHING,
    "POST /v1/jobs": ({"command": ["true"], "tenant": "{tenant}", "memory_mib": 16}, ""),
    "GET /v1/jobs/{job}": NOTHING,
    "DELETE /v1/jobs/{job}": NOTHING,
    "GET /v1/notifications": NOTHING,
    "GET /v1/notifications/{name}": (None, "tenant={tenant}"),
    "PUT /v1/notifications/{name}": ({"email": "mallory@raiders.example"}, "tenant={tenant}"),
    "DELETE /v1/notifications/{name}": (None, "tenant={tenant}"),
    "POST /v1/notifications/{name}/test": (None, "tenant={tenant}"),
    "GET /v1/networks/objects": (None, "vpc={vpc}"),
    "GET /v1/networks/objects/{kind}": (None, "name={vpc}/zqsubnet"),
    "PUT /v1/networks/objects": ({"kind": "port", "name": "{vpc}/zqsubnet/mine", "spec": {}}, ""),
    "DELETE /v1/networks/objects/{kind}": (None, "name={vpc}/zqsubnet"),
    "POST /v1/networks/apply": (
        {"documents": [{"kind": "port", "name": "{vpc}/zqsubnet/mine", "spec": {}}], "prune": True},
        "",
    ),
    "GET /v1/networks/snapshot": NOTHING,
    "GET /v1/networks/places": NOTHING,
    "POST /v1/networks/places": ({"port": "{vpc}/zqsubnet/mine", "holder": "mallory", "keep_s": 60}, ""),
    "DELETE /v1/networks/places": (None, "port={vpc}/zqsubnet/mine"),
    "GET /v1/fabric": NOTHING,
    "GET /v1/fabric/uses": NOTHING,
    "PUT /v1/fabric/status": EMPTY,
    "GET /v1/networks/certificates": NOTHING,
    "PUT /v1/networks/certificates": ({"certificate": "{tenant}", "key": "{tenant}"}, "name={vpc}/zqcert"),
    "DELETE /v1/networks/certificates": (None, "name={vpc}/zqcert"),
    "GET /v1/networks/certificates/key": (None, "name={vpc}/zqcert"),
    "PUT /v1/networks/status": ({"items": [{"kind": "vpc", "name": "{vpc}", "status": {"host": "mallory"}}]}, ""),
}
# these answers contain times, the token, or earlier requests
FREE = {"GET /v1/status", "GET /v1/overview", "GET /v1/me", "GET /v1/audit", "DELETE /v1/sessions/current"}
WHO = ("mallory", "mallory.member", "mallory.viewer", "mallory.stranger", "mallory.reader")


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with network(tmp_path_factory.mktemp("attack") / "home", "2xA100-40GB") as made:
        _victim(made)
        _attackers(made)
        yield made


def _victim(net: Network) -> None:
    client, tenant, user = net.world.client, REAL["tenant"], REAL["user"]
    limits = {"guarantee": 0.1373, "limit": 1.9317, "weight": 7.7731, "budget": "4242.42EUR"}
    client.put(f"/v1/tenants/{tenant}", limits)
    client.put(f"/v1/tenants/{tenant}/projects/{REAL['project']}", {})
    net.person(user, Role.TENANT_ADMIN, tenant)
    client.put(f"/v1/users/{user}", {"email": "zqmail@x", "subject": "zqsubject"})
    client.put(f"/v1/queues/{REAL['queue']}", {"deserved": 0.5, "users": [user]})
    REAL["notifications name"], GHOST["notifications name"] = "zqnotice", "xxnotice"
    client.put(f"/v1/notifications/zqnotice?tenant={tenant}", {"email": "zqmail@victim.example"})
    REAL["kind"] = GHOST["kind"] = "subnet"
    for kind, name, spec in (
        ("vpc", REAL["vpc"], {"tenant": tenant}),
        ("subnet", f"{REAL['vpc']}/zqsubnet", {"dhcp": True}),
    ):
        client.put("/v1/networks/objects", {"kind": kind, "name": name, "spec": {"cidrs": ["10.137.193.0/24"], **spec}})
    issued = net.issue(user, note="zqnote")
    net.tokens["victim"], REAL["tokens id"], GHOST["tokens id"] = issued["secret"], issued["id"], "abcdefghjk"
    held = {"memory_mib": 1024, "cores": 10, "policy": "burst", "tenant": tenant, "project": REAL["project"]}
    _, allocation = net.world.running("sh", "-c", "cat # zqcommand", **held, gang=REAL["gang"])
    REAL["id"], GHOST["id"] = allocation["id"], "a-" + "0" * (len(allocation["id"]) - 2)
    REAL["number"], GHOST["number"] = f"draft-{tenant}-{MONTH}", f"draft-{GHOST['tenant']}-{MONTH}"
    # of the tenant alone, with a commitment, so that there is a draft without usage
    prices = [{"name": "gpu", "measure": "guaranteed", "price": "2.00"}]
    tariff = {"name": "victims", "currency": "EUR", "valid_from": f"{MONTH}-01", "tenants": [tenant], "prices": prices}
    tariff["commitments"] = [{"of": "gpu", "hours": "1", "price": "1.00"}]
    client.put("/v1/tariffs", tariff)
    client.post("/v1/invoices", {"month": MONTH, "tenant": tenant})
    drafts = client.get(f"/v1/invoices?tenant={tenant}")["items"]
    if drafts:
        REAL["number"] = drafts[0]["number"]
        GHOST["number"] = REAL["number"].replace(tenant, GHOST["tenant"])


def _attackers(net: Network) -> None:
    net.world.client.put("/v1/tenants/raiders", {"guarantee": 1})
    net.person("mallory", Role.TENANT_ADMIN, "raiders")
    net.person("mallory.member", Role.MEMBER, "raiders")
    net.person("mallory.viewer", Role.VIEWER, "raiders")
    net.person("mallory.stranger")
    net.person("mallory.reader", Role.TENANT_ADMIN, "raiders")
    net.tokens["mallory.reader"] = net.issue("mallory.reader", scopes=["read"])["secret"]
    net.world.running("sh", "-c", "cat # ours", memory_mib=1024, cores=10, policy="burst", tenant="raiders")
    # A request of the attackers waits behind the victim: an explanation may name it.
    net.world.run("cat", gpus=2, mode="exclusive", tenant="raiders", wait_s=3600)
    until(lambda: any(a["state"] == "pending" for a in net.world.allocations()), what="the attackers to wait")


def _words(route: str, names: dict[str, str]) -> dict[str, str]:
    area = route.split("/")[2]
    own = {"id": names.get(f"{area} id", names["id"]), "name": names.get(f"{area} name", names["queue"])}
    return {**names, **own, "device": "0", "allocation": names["id"], "token": own["id"], "job": own["id"]}


def _filled(value: Any, words: dict[str, str]) -> Any:
    text = json.dumps(value)
    for name, word in words.items():
        text = text.replace(f"{{{name}}}", word)
    return json.loads(text)


def _tried(net: Network, who: str, route: str, names: dict[str, str]) -> tuple[Told, str]:
    """Send a request; return the answer and the text of the request."""
    method, _, path = route.partition(" ")
    body, query = _filled(list(ROWS[route]), words := _words(route, names))
    target = _filled(path, words) + (f"?{query}" if query else "")
    token = net.issue(who)["secret"] if route == "DELETE /v1/sessions/current" else net.tokens[who]
    return net.ask(method, target, body, token=token), target + json.dumps(body)


def _leaks(told: Told, said: str = "") -> list[str]:
    text = told.content.decode() + str(told.headers)
    return [secret for secret in SECRETS if secret in text and secret not in said]


def _of_others(audit: Told) -> Told:
    """Return the audit log without the lines of the attackers' own requests."""
    lines = audit.json().get("items", [])
    left = [line for line in lines if not line["user"].startswith("mallory")]
    return Told(status=audit.status, headers=audit.headers, content=json.dumps(left).encode())


def _alike(told: Told, names: dict[str, str], route: str) -> str:
    text = told.content.decode()
    for name, word in sorted(_words(route, names).items(), key=lambda item: -len(item[1])):
        text = text.replace(word, f"<{name}>") if len(word) > 2 else text
    return text


def _state(net: Network) -> Any:
    client, tenant = net.world.client, REAL["tenant"]
    tokens = [t for t in client.get("/v1/tokens")["items"] if t["user"] == REAL["user"]]
    users = [u for u in client.get("/v1/users")["items"] if u["name"] == REAL["user"]]
    queues = [(q["name"], q["deserved"], q["users"]) for q in client.get("/v1/queues")["items"]]
    held = [(a["id"], a["state"], a["queue"]) for a in net.world.allocations() if a["tenant"] == tenant]
    tenants = client.get("/v1/tenants")["items"], client.get(f"/v1/tenants/{tenant}/projects")["items"]
    health = [(d["health"], d["mode"], d["pinned"]) for d in client.get("/v1/devices")["items"]]
    return (
        tokens,
        users,
        queues,
        held,
        tenants,
        health,
        client.get("/v1/invoices")["items"],
        client.get("/v1/notifications")["items"],
        client.get(f"/v1/networks/objects?vpc={REAL['vpc']}")["items"],
    )


def test_every_route_has_its_row() -> None:
    assert set(ROWS) == {route.name for route in ROUTES}, "say what somebody of another tenant would try there"


@pytest.mark.parametrize("who", WHO)
def test_nobody_of_another_tenant_reads_or_changes_anything_by_any_route(net: Network, who: str) -> None:
    before = _state(net)
    for route in ROWS:
        told, said = _tried(net, who, route, REAL)
        assert told.status < 500, (route, told)
        shown = _of_others(told) if route == "GET /v1/audit" else told
        assert _leaks(shown, said) == [], (route, told.content)
        ghost, _ = _tried(net, who, route, GHOST)
        assert ghost.status == told.status, f"{route}: {told} for what is there, {ghost} for what is not"
        if told.status >= 400 or ROWS[route][1]:
            ours = told.status >= 400 or route not in FREE
            assert not ours or _same(_alike(told, REAL, route), _alike(ghost, GHOST, route)), (route, told, ghost)
    assert _state(net) == before


def _same(one: str, other: str) -> bool:
    """Return True if two answers are equal apart from figures, which change while programs run."""
    strip = str.maketrans("", "", "0123456789.e-+")
    return one.translate(strip) == other.translate(strip)


def test_the_victim_itself_reads_what_the_others_may_not(net: Network) -> None:
    seen = set()
    for path in (
        "/v1/tenants",
        "/v1/users",
        "/v1/allocations",
        "/v1/tokens",
        "/v1/quota",
        "/v1/queues",
        "/v1/events?after=0",
        "/v1/notifications",
        "/v1/networks/objects",
    ):
        told = net.ask("GET", path, token=net.tokens["victim"])
        seen.update(_leaks(told))
    assert {*REAL.values()} & set(SECRETS) <= seen, "the canaries are where they can be seen"
    assert {"zqcommand", "zqnote", "zqmail", "zqsubnet", "0.1373", "4242.42"} <= seen


def test_who_watches_hears_nothing_of_another_tenant(net: Network) -> None:
    connection = http.client.HTTPConnection(*net.address, timeout=60)
    connection.request("GET", "/v1/watch", headers={"Authorization": f"Bearer {net.tokens['mallory']}"})
    answer = connection.getresponse()
    heard = b""
    while b"nothing new" not in heard:
        heard += answer.readline()
    net.world.client.put(f"/v1/tenants/{REAL['tenant']}", {"weight": 7.5})
    net.world.client.put(f"/v1/tenants/{REAL['tenant']}", {"weight": 7.7731})
    net.world.client.put("/v1/tenants/raiders", {"weight": 2})
    while b'"name":"raiders"' not in heard:
        line = answer.readline()
        assert line, heard
        heard += line
    connection.close()
    assert not any(secret.encode() in heard for secret in SECRETS), heard


def test_a_mark_of_what_another_has_read_is_worth_nothing(net: Network) -> None:
    for path in ("/v1/tenants", "/v1/users", "/v1/allocations", "/v1/quota", "/v1/me"):
        tag = net.ask("GET", path, token=net.tokens["victim"]).headers["etag"]
        told = net.ask("GET", path, token=net.tokens["mallory"], if_none_match=tag)
        assert (told.status, _leaks(told)) == (200, []), path
        assert told.headers["cache-control"] == "private, no-cache"
        # A client that has read an object itself sees it unchanged, and only that.
        assert net.ask("GET", path, token=net.tokens["mallory"], if_none_match=told.headers["etag"]).status in {
            200,
            304,
        }


def test_tokens_that_ended_and_codes_are_no_tokens(net: Network) -> None:
    revoked, short, code = net.issue("mallory"), net.issue("mallory", life_s=0.2), net.issue("mallory", login=True)
    assert net.ask("DELETE", f"/v1/tokens/{revoked['id']}", token=net.tokens["mallory"]).status == 200
    assert net.ask("GET", "/v1/me", token=revoked["secret"]).status == 401
    until(lambda: net.ask("GET", "/v1/me", token=short["secret"]).status == 401, what="the token to expire")
    for path in ("/v1/allocations", "/v1/tenants", "/v1/users", "/v1/me"):
        assert net.ask("GET", path, token=code["secret"]).status == 401, "a login code opens a session and nothing else"
    for secret in (code["secret"][:-1], code["secret"].upper(), "cal__", "cal_" + "a" * 400):
        assert net.ask("GET", "/v1/me", token=secret).status in {401, 403}


@pytest.mark.parametrize("scopes", [["read"], ["run"], ["read", "run"], ["read", "manage"]])
def test_a_token_does_no_more_than_its_scopes_say(net: Network, scopes: list[str]) -> None:
    token = net.issue("mallory", scopes=scopes)["secret"]
    writes = net.ask("PUT", "/v1/tenants/raiders/projects/p", {"weight": 1}, token=token)
    assert (writes.status == 200) == ("manage" in scopes), writes
    assert ("raiders" in net.ask("GET", "/v1/tenants", token=token).content.decode()) == ("read" in scopes)
    makes = net.ask("POST", "/v1/tokens", {}, token=token)
    more = net.ask("POST", "/v1/tokens", {"scopes": ["read", "run", "manage"]}, token=token)
    assert more.status >= 400 or set(more.json()["scopes"]) <= set(scopes), "none makes one that may more than itself"
    assert makes.status >= 400 or set(makes.json()["scopes"]) == set(scopes)


def test_session_is_new_at_each_login_and_its_id_changes_nothing(net: Network) -> None:
    codes = [str(net.issue("mallory", login=True)["secret"]) for _ in range(2)]
    first, second = (ConsoleSession.begun(net.address, code) for code in codes)
    assert (first.id, first.key) != (second.id, second.key)
    assert log_in(net.address, codes[0]).status == 401, "a code is good once"
    for route in ROUTES:
        method, _, path = route.name.partition(" ")
        target = _filled(path, _words(route.name, REAL))
        for shown in ({"authorization": f"Bearer {first.id}"}, first.proved(method, target)):
            named = {name: value for name, value in shown.items() if name != "content-type"}
            told = net.ask(method, target, ROWS[route.name][0], **named)
            assert told.status in {400, 401, 403}, route.name
    assert b"mallory" in first.ask("GET", "/").content


TRICKS = (
    "/v1/tenants/../tenants/{tenant}",
    "/v1/tenants/%2e%2e/users/{user}",
    "/v1//tenants/{tenant}",
    "/v1/tenants/{tenant}/",
    "/v1/tenants/{tenant}%00",
    "/v1/tenants/{tenant}%0d%0aX-A:%20b",
    "/v1/tenants/{tenant}%2fprojects",
    "/v1/tenants/{tenant};x=1",
    "/V1/tenants/{tenant}",
    "/v1/users/..%2f..%2fv1%2ftenants%2f{tenant}",
    "/v1/allocations/{id}%2f..%2f{id}/why",
    "/v1/queues/raiders%2f..%2f{tenant}",
    "/v1/tenants/%7bq%7d?tenant={tenant}&token={id}",
    "/static/../v1/tenants",
    "/static/..%2f..%2fpool.db",
)


@pytest.mark.parametrize("trick", TRICKS)
def test_a_path_that_says_it_otherwise_leads_nowhere(net: Network, trick: str) -> None:
    target = _filled(trick, REAL)
    for method in ("GET", "PUT", "DELETE"):
        told = net.ask(method, target, b"{}" if method == "PUT" else None, token=net.tokens["mallory"])
        assert 300 <= told.status < 500, (method, told)
        assert _leaks(told, target) == []


def _raw(net: Network, data: bytes) -> bytes:
    with socket.create_connection(net.address, timeout=60) as sock:
        with suppress(ConnectionResetError, BrokenPipeError):
            sock.sendall(data)
        found = b""
        with suppress(ConnectionResetError):  # it hung up on what was still to come
            while (chunk := sock.recv(65536)) and found.count(b"HTTP/1.1 ") < 3:
                found += chunk
        return found


SMUGGLED = b"GET /v1/tokens HTTP/1.1\r\nHost: localhost\r\n"
HEADS = (
    b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"Content-Length: 0\r\nContent-Length: 44\r\n\r\n",
    b"Transfer-Encoding: xchunked\r\n\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    b"Content-Length: +2\r\n\r\n{}",
    b"Content-Length: -1\r\n\r\n",
    b"Content-Length : 2\r\n\r\n{}",
    b"X: a\r\n Content-Length: 3\r\n\r\n",
    b"X: a\x00b\r\n\r\n",
    b"X: " + b"y" * 17_000 + b"\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc",
)


@pytest.mark.parametrize("head", HEADS, ids=range(len(HEADS)))
def test_a_request_that_two_readers_would_cut_otherwise_carries_no_second_one(net: Network, head: bytes) -> None:
    victim = f"Authorization: Bearer {net.tokens['victim']}\r\n".encode()
    mallory = f"Authorization: Bearer {net.tokens['mallory']}\r\n".encode()
    first = b"POST /v1/mig/plan HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + mallory + head
    answers = _raw(net, first + SMUGGLED + victim + b"\r\n")
    assert answers.count(b"HTTP/1.1 ") <= 1, answers
    assert b" 200 " not in answers
    assert not any(secret.encode() in answers for secret in SECRETS), answers


def test_two_tokens_in_one_request_are_none_and_large_bodies_are_refused(net: Network) -> None:
    both = f"Authorization: Bearer {net.tokens['mallory']}\r\nAuthorization: Bearer {net.tokens['victim']}\r\n"
    answer = _raw(net, f"GET /v1/me HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{both}\r\n".encode())
    assert answer.split()[1] in {b"400", b"401", b"403"}, answer
    token = net.tokens["mallory"]
    assert net.ask("POST", "/v1/mig/plan", b'{"profiles": ["' + b"x" * 70_000 + b'"]}', token=token).status == 413
    chunked = b"Transfer-Encoding: chunked\r\n\r\n" + (b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n") * 3 + b"0\r\n\r\n"
    start = f"POST /v1/mig/plan HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n"
    assert _raw(net, start.encode() + chunked).split()[1][:1] == b"4"
    assert net.ask("GET", "/v1/me", token=token, host="evil.example").status == 421


def test_the_audit_log_says_from_which_address_of_the_network_something_came(net: Network) -> None:
    net.ask("GET", "/v1/audit/verify", token=net.tokens["mallory"], x_forwarded_for="10.9.9.9")
    found = until(
        lambda: [
            line
            for line in net.world.client.get("/v1/audit")["items"]
            if (line["user"], line["target"]) == ("mallory", "/v1/audit/verify")
        ],
        what="the refusal to be written",
    )
    assert {line["origin"] for line in found} == {"address 127.0.0.1"}
