"""Refusals of a pool: conditions that prevent its start, and operations that fail without space, rights or devices."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.daemons.world import World, until

from calabash.model.errors import CalabashError, Reason


def _last_words(world: World, *, reason: Reason) -> str:
    """Start the pool, which must refuse; return its output."""
    world.home.mkdir(parents=True, exist_ok=True)
    ended = subprocess.run(
        world.command(), env=world.environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert f"error [{reason}]: " in ended.stderr
    assert "hint: " in ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stderr


def test_a_database_of_a_newer_program_is_refused(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.up()
    world.kill()
    with sqlite3.connect(world.home / "pool.db") as database:
        database.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    assert "99" in _last_words(world, reason=Reason.STORE_NEWER)


def test_a_database_that_does_not_answer_is_refused_without_telling_its_password(
    make_world: Callable[..., World],
) -> None:
    world = make_world(database="postgresql://ann:secret@127.0.0.1:1/pool")
    assert "secret" not in _last_words(world, reason=Reason.STORE_UNAVAILABLE)


def test_a_simulated_node_that_does_not_exist_is_refused(make_world: Callable[..., World]) -> None:
    world = make_world("")
    world.sim = "nowhere"
    assert "nowhere" in _last_words(world, reason=Reason.NOT_FOUND)


def test_a_machine_without_cards_is_refused(make_world: Callable[..., World]) -> None:
    world = make_world("")
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has cards")
    _last_words(world, reason=Reason.NO_DEVICES)


def test_a_file_in_the_place_of_the_socket_is_not_removed(make_world: Callable[..., World]) -> None:
    world = make_world()
    (world.home / "pool.sock").write_text("precious")
    _last_words(world, reason=Reason.BAD_FILE)
    assert (world.home / "pool.sock").read_text() == "precious"


def test_the_socket_of_a_dead_pool_is_replaced(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.up()
    world.kill()
    assert (world.home / "pool.sock").exists()
    assert world.up()["devices"] == 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield the directory of a file system of 40 MiB."""
    target = tmp_path / "small"
    target.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m,mode=755", "none", target], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.decode().strip()}")
    yield target
    subprocess.run(["umount", "-l", target], check=True)


def _fill(directory: Path, *, leave_bytes: int) -> Path:
    status = os.statvfs(directory)
    ballast = directory / "ballast"
    # The pool writes too: a write that fails because the disk is full has served the purpose.
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        left = status.f_bavail * status.f_frsize - leave_bytes
        while left > 0:
            left -= file.write(b"x" * min(left, 1 << 20))
    return ballast


def test_a_full_disk_is_refused_at_the_start(make_world: Callable[..., World], small_disk: Path) -> None:
    world = make_world()
    world.home = small_disk
    world.sim = ""
    _fill(small_disk, leave_bytes=1 << 20)
    assert "MiB free" in _last_words(world, reason=Reason.DISK_FULL)


def test_on_a_disk_that_fills_up_nothing_is_granted_and_nothing_is_lost(
    make_world: Callable[..., World], small_disk: Path
) -> None:
    world = make_world()
    nodes = world.home / "sim"
    world.home = small_disk
    (small_disk / "sim").symlink_to(nodes)
    world.client.home = small_disk
    world.up()
    program, allocation = world.running(memory_mib=1000, cores=10)
    ballast = _fill(small_disk, leave_bytes=0)
    for _ in range(3):
        with pytest.raises(CalabashError) as caught:
            world.client.post("/v1/allocations", {"memory_mib": 1000, "cores": 10})
        assert caught.value.reason is Reason.DISK_FULL
        assert "not affected" in caught.value.hint
    assert [a["id"] for a in world.allocations()] == [allocation["id"]]
    assert program.alive()
    program.finish()
    ballast.unlink()
    until(lambda: not world.allocations(), what="the slice to come back")
    until(lambda: not world.slots(), what="no slot to be left")
    _, again = world.running(memory_mib=1000, cores=10)
    assert again["id"] != allocation["id"]
    ended = {a["id"]: a for a in world.allocations(ended=True) if a["state"] == "released"}
    assert ended[allocation["id"]]["reason"] == "ended"
    for other in ended.keys() - {allocation["id"]}:
        assert ended[other]["reason"] == "disk_full"
