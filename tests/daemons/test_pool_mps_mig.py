"""Mode mps on a card with a fixed MIG layout: one MPS service per instance; a fault affects its own instance only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.daemons.test_pool_mps import (
    ILLEGAL_ADDRESS,
    OUT_OF_MEMORY,
    ask,
    client,
    events_of,
    has_ended,
    mps,
    ready,
    send,
)
from tests.daemons.world import World, until

from calabash.model.errors import CalabashError, Reason
from calabash.node.modes.mps.services import service_directory

__all__ = ["client"]
SMS = 14  # of a compute slice of an A100
INSTANCES = {"3g.40gb": 3 * SMS, "4g.40gb": 4 * SMS}


@pytest.fixture
def cut(make_world: Callable[..., World]) -> World:
    """Start a pool with a card of two instances that serve mode mps."""
    world = make_world("1xA100-80GB")
    world.up()
    layout = [{"profile": name} for name in INSTANCES]
    world.client.post("/v1/mig/apply", {"cards": [{"device": "0", "instances": layout}]})
    world.client.post("/v1/devices/0/mode", {"mode": "mps"})
    return world


def profile_of(allocation: dict[str, Any]) -> str:
    return str(allocation["slices"][0]["profile"])


def daemons(world: World) -> list[int]:
    written = service_directory(world.home).glob("*/pipe/nvidia-cuda-mps-control.pid")
    return [pid for pid in (int(file.read_text() or 0) for file in written) if not has_ended(pid)]


def test_tenants_share_an_instance_by_percents_of_the_card(cut: World, client: str) -> None:
    large, first = cut.running(client, **mps(43, 20_000))
    small, second = cut.running(client, **mps(14, 4096))
    other, third = cut.running(client, **mps(43, 8192))
    places = [profile_of(allocation) for allocation in (first, second, third)]
    assert places == ["3g.40gb", "4g.40gb", "4g.40gb"]
    assert ready(large) == INSTANCES["3g.40gb"]
    assert ready(small) == INSTANCES["4g.40gb"] * (100 * 14 // 58) // 100
    assert ready(other) == INSTANCES["4g.40gb"] * (100 * 43 // 58) // 100
    assert len(daemons(cut)) == 2
    assert ask(small, "alloc 2048") == ["0"]
    assert ask(small, "alloc 4096") == [str(OUT_OF_MEMORY)]
    assert cut.events("mps_unverified") == []
    assert cut.events("stranger") == []
    refused = cut.run(client, **mps(14, 1024))
    until(refused.dead, what="the refusal")
    assert refused.says("refused no_cores"), refused.output


def test_a_fault_in_one_instance_is_nothing_to_the_other(cut: World, client: str) -> None:
    culprit, _ = cut.running(client, **mps(43))
    beside, spared = cut.running(client, **mps(50))
    ready(culprit)
    ready(beside)
    assert ask(culprit, "fault") == [str(ILLEGAL_ADDRESS)]
    (told,) = until(lambda: cut.events("mps_fault"), what="the fault to be told")
    assert "3g.40gb at" in told["message"]
    until(lambda: cut.events("mps_back"), what="the service to be back")
    assert ask(beside, "call") == ["0"]
    assert events_of(cut, "mps_fault", spared) == []


def test_instances_of_a_layout_serve_nobody_else_and_outlive_their_tenants(cut: World, client: str) -> None:
    tenant, _ = cut.running(client, **mps(20))
    ready(tenant)
    for body, reason in (({"mig": "3g.40gb"}, Reason.MODE_CONFLICT), ({"memory_mib": 1024}, Reason.MODE_CONFLICT)):
        with pytest.raises(CalabashError) as refused:
            cut.client.post("/v1/allocations", {"command": ["x"], **body})
        assert refused.value.reason is reason
    (daemon,) = daemons(cut)
    send(tenant, "call")
    tenant.finish()
    until(lambda: has_ended(daemon), what="the daemon to end")
    (card,) = cut.client.get("/v1/mig")["items"]
    assert sorted(i["profile"] for i in card["instances"]) == sorted(INSTANCES)
    until(lambda: not (cut.home / "mps.json").exists(), what="nothing to be written of it")


def test_the_next_pool_takes_over_the_service_of_an_instance(cut: World, client: str) -> None:
    tenant, _ = cut.running(client, **mps(30))
    ready(tenant)
    before = daemons(cut)
    cut.kill()
    assert ask(tenant, "call") == ["0"]
    cut.up()
    newcomer, allocation = cut.running(client, **mps(10))
    assert profile_of(allocation) == "3g.40gb"
    assert ready(newcomer) == INSTANCES["3g.40gb"] * (100 * 10 // 43) // 100
    assert daemons(cut) == before
    assert ask(tenant, "call") == ["0"]
