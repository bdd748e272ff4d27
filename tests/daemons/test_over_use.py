"""A slice that is held and idle goes back by policy: with an event, a line of the audit log, and not while it works."""

from __future__ import annotations

from pathlib import Path

from tests.daemons.world import World, until


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
