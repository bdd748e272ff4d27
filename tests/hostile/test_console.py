"""Attacks on the console and the API over TCP by another user of the machine, without a browser."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from tests.console_session import ConsoleSession, http_ask, log_in
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
    """Send what was recorded to the console again, in every form; return what each was answered."""
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
    session.ask("POST", "/do/queue", name="stolen", deserved="0")
    session.ask("POST", "/logout")
    log_in(address, unused)  # a login link that was printed before and is opened now
    assert len(recorded(record)) == 4
    squatter.close()
    world.options = ("--console", f"{address[0]}:{address[1]}")
    world.up()
    answers = mallory.does(_replayed, str(record), *address)
    assert len(answers) > 30
    assert [a for a in answers if a[1] not in {400, 401, 403}] == []
    assert "stolen" not in [q["name"] for q in world.client.get("/v1/queues")["items"]]
