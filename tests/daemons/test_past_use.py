"""Past use counts in fair shares: a tenant that used the pool comes after one that did not, also after a kill of the pool."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.daemons.world import Program, World, until

HALF_LIFE_S = 300.0


def _queues(world: World) -> dict[str, dict[str, Any]]:
    return {queue["name"]: queue for queue in world.client.get("/v1/queues")["items"]}


def _stored(world: World) -> dict[str, Any]:
    with closing(sqlite3.connect(f"file:{world.home / 'pool.db'}?mode=ro", uri=True)) as journal:
        row = journal.execute("SELECT value FROM meta WHERE key = 'past_use'").fetchone()
    found: dict[str, Any] = json.loads(row[0]) if row else {"at_s": 0.0, "device_s": {}}
    return found


def _waiting(world: World, tenant: str, program: Program) -> str:
    def found() -> str:
        assert program.alive(), program.says("no such text") or program.output
        pending = (a["id"] for a in world.allocations() if (a["state"], a["tenant"]) == ("pending", tenant))
        return next(pending, "")

    return str(until(found, what=f"the request of {tenant} to wait"))


def test_tenant_that_used_the_pool_comes_second_also_after_a_kill(tmp_path: Path) -> None:
    world = World(tmp_path / "home", "1xA100-40GB")
    try:
        world.home.mkdir(exist_ok=True)
        (world.home / "pool.toml").write_text('[queues]\nhalf_life = "5m"\n')
        world.up()
        for tenant in ("speech", "vision"):
            world.client.put(f"/v1/tenants/{tenant}", {"guarantee": 0})
        user, _ = world.running(cores=100, tenant="speech")
        until(lambda: _queues(world)["speech"]["past_use_device_s"] >= 3.0, what="the use to be counted")
        user.kill()
        until(lambda: not world.allocations(), what="the device to be free")
        ended_at_s = time.time()
        until(lambda: _stored(world)["at_s"] > ended_at_s, what="the past use to be stored")

        before, before_at_s = _queues(world), time.time()
        assert before["vision"]["past_use_device_s"] == 0.0
        assert before["speech/default"]["past_use_device_s"] == before["speech"]["past_use_device_s"] > 0.0
        world.kill()
        world.up()
        after, after_at_s = _queues(world), time.time()
        decay = 0.5 ** ((after_at_s - before_at_s) / HALF_LIFE_S)
        for name in before:
            expected = before[name]["past_use_device_s"] * decay
            assert after[name]["past_use_device_s"] == pytest.approx(expected, rel=0.02, abs=0.01), name
            assert after[name]["effective_weight"] == pytest.approx(before[name]["effective_weight"], rel=0.02), name
            assert after[name]["half_life_s"] == HALF_LIFE_S

        holder, _ = world.running(cores=100)
        late = world.run("cat", cores=100, tenant="speech", wait_s=300)
        of_speech = _waiting(world, "speech", late)  # it asked first
        first = world.run("cat", cores=100, tenant="vision", wait_s=300)
        of_vision = _waiting(world, "vision", first)
        told = "\n".join(world.client.get(f"/v1/allocations/{of_speech}/why")["details"])
        assert "queue speech used 0.00" in told
        assert "above its guarantee (half-life 5m)" in told
        assert "queue vision, which used less, comes first" in told
        assert "comes first" not in "\n".join(world.client.get(f"/v1/allocations/{of_vision}/why")["details"])
        holder.kill()
        until(lambda: world.allocation_of(first), what="the tenant that used nothing to be served")
        assert [a["state"] for a in world.allocations() if a["id"] == of_speech] == ["pending"]
        first.kill()
        until(lambda: world.allocation_of(late), what="the other tenant to be served after it")
    finally:
        world.close()


def test_programs_that_run_on_while_the_pool_is_down_are_counted(tmp_path: Path) -> None:
    world = World(tmp_path / "home", "1xA100-40GB")
    try:
        world.home.mkdir(exist_ok=True)
        (world.home / "pool.toml").write_text('[queues]\nhalf_life = "5m"\n')
        world.up()
        asked_at_s = time.time()
        _, allocation = world.running(cores=100)
        until(lambda: "default" in _stored(world)["device_s"], what="the use to be stored")
        world.kill()
        stored = _stored(world)
        until(lambda: time.time() > stored["at_s"] + 8.0, what="the pool to have been down for some seconds")
        world.up()
        seen_at_s = time.time()
        used = _queues(world)["default"]["past_use_device_s"]
        since_s = seen_at_s - stored["at_s"]
        assert used >= (stored["device_s"]["default"] + since_s) * 0.5 ** (since_s / HALF_LIFE_S)
        assert used <= time.time() - asked_at_s
        assert [a["id"] for a in world.allocations()] == [allocation["id"]]
    finally:
        world.close()


def test_wrong_half_life_is_refused_with_its_limits(tmp_path: Path) -> None:
    world = World(tmp_path / "home", "1xT4")
    world.home.mkdir(exist_ok=True)
    (world.home / "pool.toml").write_text('[queues]\nhalf_life = "10s"\n')
    with pytest.raises(AssertionError) as caught:
        world.up()
    world.close()
    assert "half_life 10s is out of range: 1m to 366d" in str(caught.value)
    assert "hint" in str(caught.value)
