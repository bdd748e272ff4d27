"""Attacks on the files of the pool's home and of a tenant's own slot."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.daemons.world import until
from tests.hostile.people import User
from tests.hostile.world import HostileWorld

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
LEASE_BREAK_S = float(
    Path("/proc/sys/fs/lease-break-time").read_text()
)  # the time for which a process waits for a lease
_libc = ctypes.CDLL(None, use_errno=True)


def _may_open(paths: list[str]) -> list[str]:
    """Return the paths that this user can open in any way."""
    found = []
    for path in paths:
        for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
            with contextlib.suppress(OSError):
                os.close(os.open(path, flags | os.O_NONBLOCK))
                found.append(path)
                break
    return found


def _lock_for_ever(paths: list[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            fcntl.lockf(os.open(path, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(OSError):
            fcntl.lockf(os.open(path, os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB)
        with contextlib.suppress(OSError):
            fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(1, b"locked\n")
    signal.pause()


def _private_files(home: Path) -> list[str]:
    return sorted(str(p) for p in home.iterdir() if p.name.startswith("pool.") and not p.name.endswith(".sock"))


def test_locks_on_the_journal_and_on_the_pools_lock_are_out_of_reach(world: HostileWorld, mallory: User) -> None:
    files = _private_files(world.home)
    assert {"pool.db", "pool.lock", "pool.log"} <= {Path(f).name for f in files}
    with world.unharmed():
        assert mallory.keeps(_lock_for_ever, files).line() == "locked"
    assert mallory.does(_may_open, files) == []


@pytest.mark.parametrize("mask", [0, 0o777, 0o022])
def test_files_of_the_home_are_private_whatever_the_umask(make_world: Callable[..., HostileWorld], mask: int) -> None:
    before = os.umask(mask)
    try:
        world = make_world()
    finally:
        os.umask(before)
    world.user().runs("/bin/cat", memory_mib=512, cores=10)
    until(world.allocations, what="a slice to be held")
    for path in [world.home, *world.home.rglob("*")]:
        mode = path.lstat().st_mode
        relative = str(path.relative_to(world.home))
        if relative.startswith("sim"):  # the simulated hardware is accessible to all, and the tests made it
            continue
        if stat.S_ISDIR(mode):
            assert not mode & 0o022, f"{relative} is writable by others: {mode:o}"
        elif relative.startswith("pool.") and not stat.S_ISSOCK(mode):
            assert stat.S_IMODE(mode) == 0o600, f"{relative} has mode {mode:o}"
    assert stat.S_IMODE(world.home.stat().st_mode) in {0o700, 0o711}


def _lease_everything(slot: str) -> None:
    """Take a lease (fcntl F_SETLEASE) on all files of the slot.

    Every other process that opens such a file would wait until this process releases the lease.
    """
    got = 0
    for entry in sorted(Path(slot).iterdir()):
        for flags, kind in ((os.O_RDONLY, fcntl.F_RDLCK), (os.O_RDWR, fcntl.F_WRLCK), (os.O_RDONLY, fcntl.F_WRLCK)):
            try:
                fcntl.fcntl(os.open(entry, flags | os.O_NONBLOCK), fcntl.F_SETLEASE, kind)
                got += 1
            except OSError:
                continue
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    os.write(1, f"leases {got}\n".encode())
    signal.pause()


def _slot_of(world: HostileWorld, user: User) -> Path:
    """Start a program of this user; return its slot."""
    child = user.runs("/bin/cat", memory_mib=512, cores=10)
    return world.slot_of(child)


def test_no_lease_can_be_taken_on_a_slot(world: HostileWorld, mallory: User) -> None:
    slot = _slot_of(world, mallory)
    with world.unharmed():
        assert mallory.keeps(_lease_everything, str(slot)).line() == "leases 0"
        begun = time.monotonic()
        _slot_of(world, world.user())
        assert time.monotonic() - begun < LEASE_BREAK_S


def test_the_pool_starts_again_while_a_tenant_holds_leases_on_its_slot(world: HostileWorld, mallory: User) -> None:
    slot = _slot_of(world, mallory)
    clinging = mallory.keeps(_lease_everything, str(slot))
    assert clinging.line().startswith("leases")
    world.kill()
    begun = time.monotonic()
    world.up()
    assert time.monotonic() - begun < LEASE_BREAK_S
    with world.unharmed():
        assert clinging.alive()


def _grow(slot: str) -> list[list[object]]:
    """Try everything that could enlarge a file of the slot, or fill the disk; return the results."""
    found: list[list[object]] = []

    def tried(what: str, act: Callable[[], object]) -> None:
        try:
            act()
            found.append([what, 0])
        except OSError as error:
            found.append([what, error.errno])

    def append() -> None:
        file = os.open(f"{slot}/usage", os.O_WRONLY | os.O_APPEND)
        for _ in range(64):
            os.write(file, bytes(1 << 20))

    def writing() -> int:
        return os.open(f"{slot}/usage", os.O_RDWR)

    tried("append", append)
    tried("truncate up", lambda: os.ftruncate(writing(), 1 << 30))
    tried("allocate", lambda: os.posix_fallocate(writing(), 0, 1 << 30))
    tried("pwrite far", lambda: os.pwrite(writing(), b"x", 1 << 30))
    tried("new file", lambda: os.open(f"{slot}/more", os.O_CREAT | os.O_WRONLY, 0o600))
    tried("new directory", lambda: os.mkdir(f"{slot}/more"))
    tried("hard link", lambda: os.link(f"{slot}/usage", f"{slot}/link"))
    tried("rename", lambda: os.rename(f"{slot}/usage", f"{slot}/other"))
    tried("unlink", lambda: os.unlink(f"{slot}/limits"))
    tried("chmod", lambda: os.chmod(f"{slot}/usage", 0o777))
    tried("write limits", lambda: os.open(f"{slot}/limits", os.O_WRONLY))
    return found


def _on_disk(directory: Path) -> int:
    """Return the number of bytes that all files below a directory occupy, on disk or in memory file systems."""
    found = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):  # it has just ended
            found += path.lstat().st_blocks * 512
    return found


def test_a_usage_page_cannot_be_grown_until_the_disk_is_full(world: HostileWorld, mallory: User) -> None:
    slot = _slot_of(world, mallory)
    size = (slot / "usage").stat().st_size
    before = _on_disk(world.home)
    with world.unharmed():
        tried = dict(mallory.does(_grow, str(slot)))
    for what in ("new file", "rename", "unlink", "chmod", "write limits"):
        assert tried[what], f"{what} was let through"
    assert tried["append"] in {errno.ENOSPC, errno.EFBIG, errno.EPERM, errno.EACCES}
    if slot.exists():  # a page of another size may have ended the allocation
        assert sum(p.stat().st_blocks * 512 for p in slot.iterdir()) <= size + 64 * 1024
    assert _on_disk(world.home) - before < 16 << 20


def _shrink(slot: str) -> None:
    file = os.open(f"{slot}/usage", os.O_RDWR)
    with contextlib.suppress(OSError):
        os.ftruncate(file, 0)


def _punch(slot: str) -> None:
    file = os.open(f"{slot}/usage", os.O_RDWR)
    _libc.fallocate(file, _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(os.fstat(file).st_size))


def _zero(slot: str) -> None:
    file = os.open(f"{slot}/usage", os.O_RDWR)
    os.pwrite(file, bytes(os.fstat(file).st_size), 0)


@pytest.mark.parametrize("damage", [_shrink, _punch, _zero])
def test_a_damaged_usage_page_ends_its_own_allocation_at_most(
    world: HostileWorld, mallory: User, damage: Callable[[str], None]
) -> None:
    slot = _slot_of(world, mallory)
    (allocation,) = [a["id"] for a in world.held_by(mallory)]
    with world.unharmed():
        mallory.does(damage, str(slot))
    assert world.client.get("/v1/status")["devices"] == 2
    assert world.client.delete(f"/v1/allocations/{allocation}?force=1") if slot.exists() else True


def test_other_tenants_slots_and_pages_are_out_of_reach(world: HostileWorld, mallory: User, eve: User) -> None:
    slot = _slot_of(world, mallory)
    assert eve.does(_may_open, [str(slot / "usage"), str(slot / "lease")]) == []
    assert mallory.does(_may_open, [str(slot / "usage")]) == [str(slot / "usage")]


def test_root_inside_a_container_cannot_block_the_pool(world: HostileWorld) -> None:
    """The slot of root in a container belongs to root: its changes to the files must not block the pool."""
    root = User(0, world.home)
    try:
        slot = _slot_of(world, root)
        (allocation,) = [a["id"] for a in world.held_by(root)]
        clinging = root.keeps(_lease_everything, str(slot))
        assert clinging.line().startswith("leases")
        with world.unharmed(seconds=2.0):
            begun = time.monotonic()
            _slot_of(world, world.user())
            assert time.monotonic() - begun < LEASE_BREAK_S
            world.client.delete(f"/v1/allocations/{allocation}?force=1")
            until(lambda: not slot.exists(), what="the slot to be gone")
    finally:
        root.vanish()


def _resize(path: str, size: int) -> None:
    os.truncate(path, size)
    os.write(1, b"resized\n")
    signal.pause()


@pytest.mark.parametrize("size", [0, 4096, 1 << 30])
def test_usage_page_that_is_resized_while_no_pool_runs_does_not_keep_the_next_pool_from_starting(
    world: HostileWorld, mallory: User, size: int
) -> None:
    tenant = mallory.runs(world.program("hostile"), "loose", "64", memory_mib=1024, cores=5)
    assert tenant.line() == "held 64"
    until(lambda: [a["state"] for a in world.held_by(mallory)] == ["running"], what="the slice to run")
    environment = Path(f"/proc/{tenant.pid}/environ").read_bytes().split(b"\0")
    (slot,) = [os.fsdecode(e).removeprefix("CALABASH_SLOT=") for e in environment if e.startswith(b"CALABASH_SLOT=")]
    world.kill()
    assert mallory.keeps(_resize, f"{slot}/usage", size).line() == "resized"
    world.up()
    until(lambda: not world.held_by(mallory), what="the allocation with the resized page to end")
    assert [e["reason"] for e in world.events("hostile")][-1:] == ["bad_file"]
    with world.unharmed():
        pass
