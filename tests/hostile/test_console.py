"""Attacks on the console and the API over TCP by another user of the machine, without a browser."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from bench._console_session import ConsoleSession, http_ask, log_in
from tests.hostile.people import User
from tests.hostile.world import HostileWorld
from tests.recorder import recorded, serve

CONSOLE = ("--console", "127.0.0.1:0")


def _address(world: HostileWorld) -> tuple[str, int]:
    host, _, port = str(world.client.get("/v1/status")["console"]).removeprefix("http://").rpartition(":")
    return host, int(port)


def _code(world: HostileWorld) -> str:
    code: str = world.client.post("/v1/tokens", {"login": True})["secret"]
    return code


def _replayed(record: str, host: str, port: int) -> list[list[object]]:
    """Send recorded requests of a browser to the console again, unchanged and with changes; return the answers."""
    found: list[list[object]] = []
    with open(record, encoding="utf-8") as lines:
        received = [json.loads(line) for line in lines]
    for method, path, pairs, body in received:
        headers = {name.lower(): value for name, value in pairs if name.lower() != "content-length"}
        words = {"", *headers.values(), *headers.get("calabash-proof", "").split(".")}
        session = headers.get("calabash-session", "")
        forms = [headers, *({"authorization": f"Bearer {word}"} for word in words if word.isalnum())]
        forms += [{"cookie": f"calabash_session={word}"} for word in words if word.isalnum()]
        forms += [{"authorization": f"Bearer cal_{session}_{word}"} for word in words if word.isalnum()]
        for shown in forms:
            answer = http_ask(
                (host, port), method, path, bytes.fromhex(body), headers={"accept": "application/json", **shown}
            )
            found.append([path, answer.status])
            answer = http_ask((host, port), "GET", "/v1/me", headers=shown)
            found.append(["/v1/me", answer.status])
    return found


def test_the_next_owner_of_the_consoles_port_gets_nothing_that_a_later_pool_accepts(
    make_world: Callable[..., HostileWorld], mallory: User
) -> None:
    world = make_world("1xT4", options=CONSOLE)
    address, unused = _address(world), _code(world)
    session = ConsoleSession.begun(address, _code(world))
    assert session.ask("GET", "/queues").status == 200
    world.kill()
    record = world.directory / "record"
    record.touch()
    os.chown(record, mallory.uid, mallory.uid)
    squatter = mallory.keeps(serve, address[1], str(record))
    assert int(squatter.line()) == address[1]
    session.ask("GET", "/queues?format=json")
    session.ask("POST", "/do/queue", name="stolen", guarantee="0")
    session.ask("POST", "/logout")
    log_in(address, unused)  # a login link that was printed before and is opened now
    assert len(recorded(record)) == 4
    squatter.close()
    world.options = ("--console", f"{address[0]}:{address[1]}")
    world.up()
    answers = mallory.does(_replayed, str(record), *address, within_s=300)  # each refusal is held back for a second
    assert len(answers) > 30
    assert [a for a in answers if a[1] not in {400, 401, 403}] == []
    assert "stolen" not in [q["name"] for q in world.client.get("/v1/queues")["items"]]


def _flood(host: str, port: int, token: str) -> None:
    """Hold idle connections, guess tokens, send heads of requests slowly, and send requests with one valid token."""
    lines = []
    for _ in range(450):
        with suppress(OSError):
            lines.append(socket.create_connection((host, port), timeout=60))
    for line in lines[::2]:
        with suppress(OSError):
            line.sendall(b"GET /v1/me HTTP/1.1\r\nX: ")

    def ask(shown: str) -> None:
        number = 0
        while True:
            number += 1
            bearer = shown or f"cal_guess{number:05}_{'x' * 40}"
            with suppress(OSError, AssertionError, ValueError):
                http_ask((host, port), "GET", "/v1/me", headers={"authorization": f"Bearer {bearer}"})

    for shown in [""] * 8 + [token] * 4:
        threading.Thread(target=ask, args=(shown,), daemon=True).start()
    os.write(1, b"floods\n")
    while True:
        time.sleep(60)


def test_a_user_is_served_by_the_console_while_another_floods_it(
    make_world: Callable[..., HostileWorld], mallory: User, eve: User
) -> None:
    world = make_world("1xT4", options=CONSOLE)
    address = _address(world)
    tokens = [world.client.post("/v1/tokens", {"note": str(n)})["secret"] for n in range(2)]
    session = ConsoleSession.begun(address, _code(world))
    flood = mallory.keeps(_flood, *address, tokens[0])
    assert flood.line() == "floods"
    answers = eve.does(_asked, *address, tokens[1])
    assert [status for status, _ in answers] == [200] * len(answers)
    assert session.ask("GET", "/queues").status == 200
    times = sorted(seconds for _, seconds in answers)
    print(f"p99 {times[-2] * 1e3:.0f} ms, median {times[len(times) // 2] * 1e3:.0f} ms")
    assert flood.alive()
    flood.close()


def _asked(host: str, port: int, token: str) -> list[tuple[int, float]]:
    found = []
    for _ in range(100):
        begun_s = time.monotonic()
        answer = http_ask((host, port), "GET", "/v1/me", headers={"authorization": f"Bearer {token}"})
        found.append((answer.status, time.monotonic() - begun_s))
        time.sleep(0.05)
    return found
