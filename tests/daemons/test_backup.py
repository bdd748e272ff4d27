"""Commands that write a pool's database to a file, and restore it."""

from __future__ import annotations

from pathlib import Path

from tests.daemons.terminal import Terminal
from tests.daemons.world import World


def test_a_pool_is_kept_while_it_runs_and_put_back_when_it_is_down(tmp_path: Path) -> None:
    world = World(tmp_path / "home", "1xT4")
    type_ = Terminal(tmp_path / "home", tmp_path)
    file = tmp_path / "kept"
    try:
        world.up()
        world.client.put("/v1/queues/kept", {"deserved": 1})
        assert "schema" in type_("backup", "create", str(file)).stdout
        assert "already exists" in type_.refused(1, "backup", "create", str(file))
        world.client.delete("/v1/queues/kept")
        assert "a pool runs already" in type_.refused(1, "backup", "restore", str(file))
        world.kill()  # changes that are not in the database yet are in a companion of the file
        assert "restored" in type_("backup", "restore", str(file)).stdout
        assert (world.home / "pool.db").stat().st_mode & 0o777 == 0o600
        assert (world.home / "pool.db.replaced").exists()
        world.up()
        assert "kept" in [q["name"] for q in world.client.get("/v1/queues")["items"]]
        found = world.client.get("/v1/audit/verify")
        assert (found["whole"], found["wrong"]) == (True, "")
        assert "restore" in [line["action"] for line in world.client.get("/v1/audit")["items"]]
    finally:
        world.close()


def test_what_is_no_backup_says_so_and_changes_nothing(tmp_path: Path) -> None:
    type_ = Terminal(tmp_path / "home", tmp_path)
    (tmp_path / "text").write_text("hello")
    for name, code, said in (("text", 1, "is no backup"), ("none", 3, "cannot be read")):
        assert said in type_.refused(code, "backup", "restore", str(tmp_path / name))
    assert not (tmp_path / "home" / "pool.db").exists()
    assert "there is no database" in type_.refused(3, "backup", "create", str(tmp_path / "new"))
