"""Notices of a real pool: they are delivered after a crash of the pool too, and not to private addresses.

Slow receivers do not delay the pool.
"""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemons.terminal import Terminal
from tests.daemons.world import World, until
from tests.receiver import Receiver, receiving

from calabash.model.errors import CalabashError, Reason


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "home", "1xA100-40GB")
    made.home.mkdir(exist_ok=True)
    (made.home / "pool.toml").write_text('[notifications]\nallow = ["127.0.0.1"]\n')
    made.up()
    made.client.put("/v1/tenants/vision", {"guarantee": 0, "limit": 1})
    yield made
    made.close()


def _over(world: World) -> None:
    """Make tenant vision exceed its limit, and wait for the event of over-use."""
    world.running(memory_mib=100, cores=40, tenant="vision")
    world.client.put("/v1/tenants/vision", {"limit": 0.1})
    until(lambda: world.events("over_use"))


def test_a_notice_reaches_its_receiver_although_the_pool_is_killed(
    world: World, receiver: Receiver, tmp_path: Path
) -> None:
    terminal = Terminal(world.home, tmp_path)
    receiver.always = 503
    made = terminal("notify", "create", "hook", "--tenant", "vision", "--webhook", receiver.url, "--event", "over-use")
    secret = made.stdout.strip()
    assert secret.startswith("whsec_")
    _over(world)
    until(lambda: receiver.taken)
    until(lambda: world.client.get("/v1/notifications/hook?tenant=vision")["last_error"])
    world.kill()
    receiver.always = 200
    world.up()
    until(lambda: world.client.get("/v1/notifications/hook?tenant=vision")["delivered"] >= 1)
    assert receiver.ids().count(receiver.ids()[0]) >= 2, "what was on its way was not sent again under its own id"
    told = json.loads(receiver.taken[0][1])
    assert (told["type"], told["data"]["tenant"]) == ("over-use", "vision")
    assert "holds 0.4 devices" in told["data"]["message"]
    assert secret not in (world.home / "pool.log").read_text()
    assert secret not in terminal("notify", "list", "-o", "json").stdout
    assert "the receiver accepted the test notice" in terminal("notify", "test", "hook", "--tenant", "vision").stdout
    terminal("notify", "delete", "hook", "--tenant", "vision")
    assert world.client.get("/v1/notifications")["items"] == []


def test_a_receiver_that_is_silent_holds_up_neither_the_pool_nor_others(world: World, receiver: Receiver) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for number in range(5):
            url = f"http://127.0.0.1:{silent.getsockname()[1]}/{number}"
            world.client.put(f"/v1/notifications/silent{number}", {"webhook": url})
        world.client.put("/v1/notifications/hook", {"webhook": receiver.url, "kinds": ["over-use"]})
        _over(world)
        until(lambda: world.client.get("/v1/notifications/hook")["delivered"] == 1)
        assert world.client.get("/v1/notifications/silent0")["delivered"] == 0
        world.kill(signal.SIGTERM)


@pytest.mark.parametrize("host", ["127.0.0.2", "[::1]", "169.254.169.254", "10.0.0.1"])
def test_a_webhook_at_a_private_address_is_refused(world: World, host: str) -> None:
    with pytest.raises(CalabashError) as failed:
        world.client.put("/v1/notifications/hook", {"webhook": f"https://{host}/"})
    assert failed.value.reason is Reason.NOT_PERMITTED


def test_a_name_that_leads_to_a_private_address_is_refused_when_it_is_sent_to(world: World) -> None:
    world.client.put("/v1/notifications/hook", {"webhook": "https://localhost.localdomain/"})
    world.client.put("/v1/notifications/hook", {"webhook": "https://localhost:1/"})
    tested = world.client.post("/v1/notifications/hook/test", {})
    assert tested["passed"] is False
    assert "may not be reached" in tested["why"] or "does not answer" in tested["why"]
