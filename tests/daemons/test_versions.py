"""A pool refuses commands of another minor version, also through its gateway, and serves what running programs need."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.daemons.world import World

import calabash
from calabash.adapters.pool.client import PoolClient
from calabash.adapters.pool.gateway_client import ServerClient
from calabash.api import endpoints
from calabash.model.errors import CalabashError, Reason


def test_command_of_another_minor_version_is_refused_and_can_show_the_pool_and_release_a_slice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, held = world.running("cat", memory_mib=1024, cores=5)
    own = calabash.__version__
    client = PoolClient(world.home)
    monkeypatch.setattr(calabash, "__version__", "99.7.1")
    with pytest.raises(CalabashError) as caught:
        client.send(endpoints.LIST_QUEUES)
    assert caught.value.reason is Reason.VERSION_MISMATCH
    assert caught.value.message.startswith(f"the client is calabash 99.7.1; the pool is calabash {own} and supports")
    assert "restart the pool with the version of the client" in caught.value.hint
    assert client.send(endpoints.SHOW_STATUS)["version"] == own
    assert program.alive()
    client.send(endpoints.RELEASE, held["id"], query={"force": 1}, timeout_s=60)
    monkeypatch.setattr(calabash, "__version__", own)
    assert world.allocations() == []


def test_gateway_passes_the_version_of_its_client_on(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world("1xT4", options=("--console", "127.0.0.1:0"))
    world.up()
    client = world.client
    token = client.send(endpoints.CREATE_TOKEN)["secret"]
    through = ServerClient(client.send(endpoints.SHOW_STATUS)["console"], token)
    assert through.send(endpoints.LIST_QUEUES)["items"]
    monkeypatch.setattr(calabash, "__version__", "99.7.1")
    with pytest.raises(CalabashError, match=r"the client is calabash 99\.7\.1") as caught:
        through.send(endpoints.LIST_QUEUES)
    assert caught.value.reason is Reason.VERSION_MISMATCH
