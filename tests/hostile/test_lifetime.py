"""Attacks on the end of an allocation: programs that try to survive it or to keep its resources."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from tests.api_client import PathClient
from tests.daemons.world import until
from tests.hostile.people import User
from tests.hostile.world import HostileWorld

from calabash.model.errors import CalabashError

HOLD: dict[str, Any] = {"memory_mib": 2048, "cores": 10}


@pytest.mark.parametrize("how", ["loose", "daemon"])
def test_a_slice_is_held_while_one_of_its_processes_lives(world: HostileWorld, mallory: User, how: str) -> None:
    hidden = mallory.runs(world.program("hostile"), how, "1024", **HOLD)
    assert hidden.line() == "held 1024"
    with world.unharmed(seconds=2.0):
        time.sleep(1.0)  # many sweeps
        held = world.held_by(mallory)
        assert [a["state"] for a in held] == ["running"]
        assert held[0]["pids"], "its programs are known"
    world.client.delete(f"/v1/allocations/{held[0]['id']}?force=1")
    until(lambda: not world.held_by(mallory), what="the slice to end by force")
    until(lambda: not _on_the_cards(world, mallory), what="its memory to be free")


def _on_the_cards(world: HostileWorld, user: User) -> list[int]:
    return [p.pid for p in world.card_state().processes if p.uid == user.uid and p.devices]


def test_a_slice_ends_when_its_last_process_has_ended(world: HostileWorld, mallory: User) -> None:
    hidden = mallory.runs(world.program("hostile"), "daemon", "1024", **HOLD)
    assert hidden.line() == "held 1024"
    assert world.held_by(mallory)
    for pid in mallory.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not world.held_by(mallory), what="the slice to end")


def _park(slot: str) -> None:
    """Send descriptors of the slot's files into a socket and close them, so that only the socket's queue holds them."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    opened = []
    for name in ("lease", "usage", "limits"):
        with contextlib.suppress(OSError):
            opened.append(os.open(f"{slot}/{name}", os.O_RDONLY))
    left.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", opened))])
    for descriptor in opened:
        os.close(descriptor)
    os.write(1, f"parked {len(opened)}\n".encode())
    while True:
        signal.pause()
        assert right


def test_release_frees_a_slice_whose_descriptors_are_parked_in_a_socket(world: HostileWorld, mallory: User) -> None:
    program = mallory.runs("/bin/cat", **HOLD)
    allocation = until(lambda: world.running_allocation(program), what="the program to run")["id"]
    slot = world.slot_path(allocation)
    parked = mallory.keeps(_park, str(slot))
    assert parked.line().startswith("parked")
    with world.unharmed():
        world.client.delete(f"/v1/allocations/{allocation}?force=1")
        until(lambda: not world.held_by(mallory), what="the slice to be free")
        until(program.dead)
    assert parked.alive()
    assert not slot.exists()


def test_a_slice_ends_by_itself_while_its_descriptors_are_parked_in_a_socket(
    world: HostileWorld, mallory: User
) -> None:
    program = mallory.runs("/bin/cat", **HOLD)
    allocation = until(lambda: world.running_allocation(program), what="the program to run")["id"]
    parked = mallory.keeps(_park, str(world.slot_path(allocation)))
    assert parked.line().startswith("parked")
    program.let_end()
    until(lambda: not world.held_by(mallory), what="the slice to end with its program")
    assert parked.alive()


def _hold_what_is_sent(path: str) -> None:
    """Receive descriptors on a Unix socket and keep them open, as a process without an allocation."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    os.chmod(path, 0o777)
    listener.listen()
    os.write(1, b"listening\n")
    peer, _ = listener.accept()
    _, ancillary, _, _ = peer.recvmsg(1, socket.CMSG_SPACE(64))
    os.write(1, f"got {len(ancillary)}\n".encode())
    signal.pause()


def _send(path: str, slot: str) -> None:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    opened = []
    for name in ("lease", "usage", "limits"):
        with contextlib.suppress(OSError):
            opened.append(os.open(f"{slot}/{name}", os.O_RDONLY))
    sock.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", opened))])
    os.write(1, b"sent\n")
    signal.pause()


@pytest.mark.parametrize("of_root", [False, True])
def test_an_unmanaged_process_that_was_sent_a_descriptor_is_not_killed(
    world: HostileWorld, mallory: User, eve: User, of_root: bool
) -> None:
    directory = world.directory / "innocent"
    directory.mkdir(exist_ok=True)
    os.chown(directory, eve.uid, -1)
    path = directory / f"{eve.uid}.sock"
    owner = User(0, world.home) if of_root else mallory
    innocent = eve.keeps(_hold_what_is_sent, str(path))
    assert innocent.line() == "listening"
    program = owner.runs("/bin/cat", **HOLD)
    allocation = until(lambda: world.running_allocation(program), what="the program to run")["id"]
    assert owner.keeps(_send, str(path), str(world.slot_path(allocation))).line() == "sent"
    assert innocent.line().startswith("got")
    with world.unharmed():
        world.client.delete(f"/v1/allocations/{allocation}?force=1")
        until(lambda: all(a["id"] != allocation for a in world.allocations()), what="the slice to be free")
        time.sleep(0.5)
        assert innocent.alive()
    owner.vanish()


def _lock_all(slot: str) -> None:
    locked = 0
    for name in ("lease", "usage", "limits"):
        with contextlib.suppress(OSError):
            fcntl.flock(os.open(f"{slot}/{name}", os.O_RDONLY | os.O_NONBLOCK), fcntl.LOCK_SH | fcntl.LOCK_NB)
            locked += 1
    os.write(1, f"locks {locked}\n".encode())
    signal.pause()


def test_other_users_cannot_prolong_a_slice_of_root(world: HostileWorld, mallory: User) -> None:
    root = User(0, world.home)
    program = root.runs("/bin/cat", **HOLD)
    allocation = until(lambda: world.running_allocation(program), what="root's program to run")["id"]
    slot = world.slot_path(allocation)
    clinging = mallory.keeps(_lock_all, str(slot))
    assert clinging.line().startswith("locks")
    program.let_end()
    until(lambda: all(a["id"] != allocation for a in world.allocations()), what="root's slice to end")
    root.vanish()
    assert clinging.alive()


def test_new_processes_of_a_slice_start_while_the_pool_is_down(world: HostileWorld, mallory: User) -> None:
    script = f"echo up; read go; exec {world.program('hostile')} hold 256"
    program = mallory.runs("/bin/sh", "-c", script, **HOLD)
    assert program.line() == "up"
    world.kill()
    os.write(program.stdin, b"go\n")
    assert program.line() == "held 256"
    world.up()
    until(lambda: world.running_allocation(program), what="the slice to be known again")
    with world.unharmed():
        pass


def test_an_orphan_that_ignores_sigterm_is_ended_by_force(world: HostileWorld, mallory: User) -> None:
    script = "trap '' TERM INT HUP; (trap '' TERM; sleep 1000) & setsid sleep 1000 & echo up; wait; sleep 1000"
    program = mallory.runs("/bin/sh", "-c", script, **HOLD)
    assert program.line() == "up"
    allocation = until(lambda: world.running_allocation(program), what="the program to run")["id"]
    with world.unharmed():
        world.client.delete(f"/v1/allocations/{allocation}?force=1")
        until(lambda: not world.held_by(mallory), what="the slice to end by force")
        until(lambda: not mallory.processes(), what="all of it to be dead")


def _enter(home: str, allocation: str, pid: int) -> str:
    """Try to make a process the program of an allocation; return the reason of the refusal."""
    try:
        PathClient(Path(home)).post(f"/v1/allocations/{allocation}/started", {"pid": pid})
    except CalabashError as error:
        return str(error.reason)
    return "entered"


def test_a_program_that_moves_to_a_smaller_slice_is_held_to_that_one(world: HostileWorld, mallory: User) -> None:
    large = mallory.runs(world.program("hostile"), "hold", "6144", memory_mib=8192, cores=10)
    small = mallory.runs("/bin/cat", memory_mib=512, cores=10)
    assert large.line() == "held 6144"
    target = until(lambda: world.running_allocation(small), what="the program to run")["id"]
    with world.unharmed():
        mallory.does(_enter, str(world.home), target, large.pid)
        until(lambda: _right(world, mallory), what="it to be held to one of its slices")


def _right(world: HostileWorld, user: User) -> bool:
    """Return True if no slice of this user has more memory of a card than it was granted."""
    used = {
        p.pid: sum(d.alloc_bytes for d in p.devices) >> 20 for p in world.card_state().processes if p.uid == user.uid
    }
    held = world.held_by(user)
    told = {pid for allocation in held for pid in allocation["pids"]}
    return all(pid in told or not mib for pid, mib in used.items()) and all(
        sum(used.get(pid, 0) for pid in a["pids"]) <= a["slices"][0]["memory_mib"] for a in held
    )
