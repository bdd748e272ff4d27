"""Attacks by large numbers of requests, connections, unread answers and log lines."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.api_client import PathClient
from tests.daemons.world import until
from tests.hostile.people import Child, User
from tests.hostile.world import HostileWorld

from calabash.model.errors import CalabashError

REQUESTS = 1500  # of each attacker, before the attack counts as made; a user may have 1000 waiting requests
MEMORY_MIB = 200
LINES = 200  # by each attacker; the pool answers some thirty a second
LOG_BYTES = 8 << 20


@pytest.fixture(autouse=True)
def settled(world: HostileWorld) -> None:
    """Wait until the pool has loaded its lazy modules, which is no part of an attack."""
    assert world.daemon is not None
    maps = Path(f"/proc/{world.daemon.pid}/maps")
    until(lambda: "scipy/optimize" in maps.read_text(), what="the pool to have loaded what its scheduler learns with")


def _request(method: str, path: str, body: object = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def _connected(home: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(2)
    sock.connect(f"{home}/pool.sock")
    return sock


def _open_many(home: str, data: bytes, number: int) -> None:
    """Open as many connections as possible, each with this data; reopen those that the pool closes."""
    held: list[socket.socket] = []
    told = False
    tried = 0
    while True:
        tried += 1
        with contextlib.suppress(OSError):
            sock = _connected(home)
            sock.setblocking(False)
            held.append(sock)
            with contextlib.suppress(OSError):
                sock.send(data)
        if tried >= number and not told:
            told = True
            os.write(1, f"opened {tried}\n".encode())  # and goes on
        if len(held) > 800:
            held.pop(0).close()
        time.sleep(0.001)  # the attack is on the pool, and not on the machine's processors


def _memory_mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) // 1024


def _all_say(flood: Sequence[Child], word: str) -> None:
    for child in flood:
        assert child.line().startswith(word)


def test_thousands_of_waiting_requests_of_one_user_delay_nobody(world: HostileWorld, mallory: User) -> None:
    data = _request("POST", "/v1/allocations", {"gpus": 2, "mode": "exclusive", "wait_s": 3600})
    flood = [mallory.keeps(_open_many, str(world.home), data, REQUESTS) for _ in range(2)]
    most = 0
    with world.unharmed():
        while not all(child.says("opened") for child in flood):
            waiting = [a for a in world.allocations() if a["state"] == "pending" and a["uid"] == mallory.uid]
            most = max(most, len(waiting))
            assert most <= 1000
            assert all(child.alive() for child in flood)
            time.sleep(0.02)
    assert most > 0
    with world.unharmed():  # all hang up in the same moment
        for child in flood:
            os.kill(child.pid, signal.SIGKILL)


def test_requests_that_are_refused_at_once_delay_nobody(world: HostileWorld, mallory: User) -> None:
    data = _request("POST", "/v1/allocations", {"gpus": 2, "mode": "exclusive"}) * 50
    flood = [mallory.keeps(_open_many, str(world.home), data, REQUESTS) for _ in range(2)]
    with world.unharmed():
        _all_say(flood, "opened")


def test_half_open_connections_delay_nobody(world: HostileWorld, mallory: User) -> None:
    assert world.daemon is not None
    before = _memory_mib(world.daemon.pid)
    halves = (
        b"",
        b"GET /v1/status HTTP/1.1\r\nX: ",
        b"POST /v1/allocations HTTP/1.1\r\nContent-Length: 60000\r\n\r\n{",
    )
    flood = [mallory.keeps(_open_many, str(world.home), half, REQUESTS) for half in halves]
    with world.unharmed():
        _all_say(flood, "opened")
    assert _memory_mib(world.daemon.pid) - before < MEMORY_MIB


def _never_read(home: str) -> None:
    """Request long lists and read none of them."""
    held = []
    data = _request("GET", "/v1/events?after=0") * 200 + _request("GET", "/v1/allocations?all=1") * 200
    for _ in range(200):
        with contextlib.suppress(OSError):
            sock = _connected(home)
            sock.setblocking(False)
            held.append(sock)
            with contextlib.suppress(OSError):
                sock.send(data)
    os.write(1, b"asked\n")
    signal.pause()


def test_answers_that_nobody_reads_take_no_memory(world: HostileWorld, mallory: User) -> None:
    assert world.daemon is not None
    before = _memory_mib(world.daemon.pid)
    with world.unharmed():
        assert mallory.keeps(_never_read, str(world.home)).line() == "asked"
    assert _memory_mib(world.daemon.pid) - before < MEMORY_MIB


def _chatter(home: str) -> None:
    """Send requests that might write a line to the pool's log or journal; report after ``LINES`` requests and continue."""
    long = "x" * 15_000
    bodies = [
        _request("POST", "/v1/allocations", {"gpus": 64}),
        _request("POST", "/v1/allocations", {"command": [long], "memory_mib": 16, "cores": 1, "policy": "best-effort"}),
        _request("POST", "/v1/allocations", {"tenant": "\n"}),
        _request("GET", f"/v1/allocations/{'y' * 1000}/why"),
        _request("DELETE", "/v1/allocations/%00"),
        b"\xff\xfe nonsense\r\n\r\n",
        b"GET /v1/status HTTP/9.9\r\n\r\n",
    ]
    number = 0
    while True:
        with contextlib.suppress(OSError), _connected(home) as sock:
            sock.send(bodies[number % len(bodies)])
            sock.recv(65536)
        number += 1
        if number == LINES:
            os.write(1, b"sent\n")


def _size(world: HostileWorld, pattern: str) -> int:
    return sum(p.stat().st_size for p in world.home.glob(pattern))


def test_the_log_and_the_journal_do_not_fill_the_disk(world: HostileWorld, mallory: User) -> None:
    log_before, journal_before = _size(world, "pool.log*"), _size(world, "pool.db*")
    flood = [mallory.keeps(_chatter, str(world.home)) for _ in range(2)]
    with world.unharmed():
        _all_say(flood, "sent")
    assert _size(world, "pool.log*") - log_before < LOG_BYTES
    assert _size(world, "pool.db*") - journal_before < 2 * LOG_BYTES


def _come_and_go(home: str, number: int) -> int:
    pool = PathClient(Path(home))
    done = 0
    for _ in range(number):
        try:
            body = {"memory_mib": 16, "cores": 1, "policy": "best-effort", "command": ["x" * 60_000]}
            granted = pool.post("/v1/allocations", body)
            pool.delete(f"/v1/allocations/{granted['id']}")
            done += 1
        except CalabashError:
            time.sleep(0.05)
    return done


def test_ended_allocations_leave_the_journal_again(world: HostileWorld, mallory: User) -> None:
    before = _size(world, "pool.db*")
    with world.unharmed():
        done = mallory.does(_come_and_go, str(world.home), 100)
    assert done
    assert _size(world, "pool.db*") - before < 6 << 20
    until(lambda: not world.held_by(mallory))
