"""Over-use policies: idle slices are ended, and shares of a tenant over its limit are lowered until it is within it."""

from __future__ import annotations

import ctypes
from pathlib import Path

from tests.daemons.world import World, until

from calabash.node.slots.layout import LimitsStruct, PagePolicy


def test_an_idle_slice_is_told_of_and_taken_back(tmp_path: Path) -> None:
    world = World(tmp_path / "home", "1xA100-40GB")
    try:
        world.home.mkdir(exist_ok=True)
        (world.home / "pool.toml").write_text(
            '[over_use]\nidle = "return"\nidle_minutes = 0.02\nnotice_minutes = 0.01\n'
        )
        world.up()
        program, allocation = world.running(memory_mib=100, cores=10)
        until(program.dead)
        until(lambda: not world.allocations())
        (ended,) = world.allocations(ended=True)
        assert (ended["id"], ended["reason"]) == (allocation["id"], "idle")
        until(lambda: world.events("taken_back"))
        kinds = ("over_use", "taken_back")

        def lines() -> list[str]:
            found = world.client.get("/v1/audit")["items"]
            return [x["action"] for x in found if x["user"] == "pool" and x["target"] == allocation["id"]]

        until(lambda: lines() == list(kinds))
        assert [len(world.events(kind)) for kind in kinds] == [1, 1]
    finally:
        world.close()


def _policy(world: World, allocation: str) -> int:
    """Return the number of the compute policy in the limits page of an allocation."""
    limits = LimitsStruct.from_buffer_copy((world.slot_path(allocation) / "limits").read_bytes())
    return int(limits.device[0].policy)


def test_shares_of_a_tenant_that_is_over_its_limit_are_lowered_and_come_back_also_after_a_kill(tmp_path: Path) -> None:
    assert ctypes.sizeof(LimitsStruct)
    world = World(tmp_path / "home", "1xA100-40GB")
    try:
        world.home.mkdir(exist_ok=True)
        (world.home / "pool.toml").write_text('[over_use]\nlimit = "lower"\n')
        world.up()
        for tenant in ("vision", "speech"):
            world.client.put(f"/v1/tenants/{tenant}", {"guarantee": 0, "limit": 1})
        mine, over = world.running(memory_mib=100, cores=40, tenant="vision")
        other, fine = world.running(memory_mib=100, cores=40, tenant="speech")
        world.client.put("/v1/tenants/vision", {"limit": 0.1})
        until(lambda: _policy(world, over["id"]) == PagePolicy.BEST_EFFORT)
        until(lambda: world.events("share_lowered"))
        assert _policy(world, fine["id"]) == PagePolicy.FIXED
        world.kill()
        world.up()
        assert _policy(world, over["id"]) == PagePolicy.BEST_EFFORT
        world.client.put("/v1/tenants/vision", {"limit": 1})
        until(lambda: _policy(world, over["id"]) == PagePolicy.FIXED)
        until(lambda: world.events("share_restored"))

        def lines() -> list[str]:
            found = world.client.get("/v1/audit")["items"]
            return [x["action"] for x in found if x["user"] == "pool" and x["target"] == over["id"]]

        until(lambda: lines() == ["share_lowered", "share_restored"])
        assert mine.alive()
        assert other.alive()
    finally:
        world.close()
