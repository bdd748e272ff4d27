"""The one port: programs go to their worker, everything else to the HTTPS server, and nobody is waited for."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.server.test_first_record import LEASE, SESSION, hello, python_hello
from tests.unit.broker.standins import HostStandIn

from calabash.broker.server import port as door_module
from calabash.broker.server.first_record import NO_SUCH_LEASE
from calabash.broker.server.port import FrontDoor

KEY = "5c" * 32


class Place:
    """A door with a host of workers behind it."""

    def __init__(self, directory: Path, *, status: int = 0) -> None:
        self.host = HostStandIn(directory / "worker.sock", status)
        self.counts: Counter[str] = Counter()
        self.passed: list[bytes] = []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.door = FrontDoor(self.listener, entrance=self.entrance, pass_on=self.pass_on, count=self.count)

    def entrance(self, lease: str, session: str, peer: str) -> tuple[str, str] | None:
        assert peer.startswith("127.0.0.1:")
        return (str(self.host.path), KEY) if lease == LEASE else None

    async def pass_on(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        with connection:
            self.passed.append(connection.recv(4096))

    def count(self, kind: str) -> None:
        self.counts[kind] += 1

    async def counted(self, kind: str, times: int = 1) -> None:
        async with asyncio.timeout(60):
            while self.counts[kind] < times:
                await asyncio.sleep(0.005)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.listener.getsockname()[:2])


def play(tmp_path: Path, story: Callable[[Place], Coroutine[Any, Any, None]], *, status: int = 0) -> None:
    async def begin() -> None:
        place = Place(tmp_path, status=status)
        serving = asyncio.create_task(place.door.serve())
        try:
            async with asyncio.timeout(60):
                await story(place)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            place.listener.close()
            place.host.close()

    asyncio.run(begin())


def test_a_program_is_handed_to_the_host_of_its_lease_with_nothing_read(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        with place.connect() as program:
            program.sendall(hello() + b"and more")
            there = await place.host.take()
            await place.counted("session")
            there.setblocking(True)
            assert there.recv(4096) == hello() + b"and more"
            there.sendall(b"welcome")
            assert await asyncio.to_thread(program.recv, 64) == b"welcome"
        (greeting,) = place.host.greetings
        assert greeting == (b"CALABASH", 1, 2, 0, bytes.fromhex(SESSION), bytes.fromhex(KEY))

    play(tmp_path, story)


def test_a_hello_that_comes_byte_by_byte_is_waited_for(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        with place.connect() as program:
            program.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in hello():
                program.send(bytes([byte]))
                await asyncio.sleep(0)
            await place.host.take()
            await place.counted("session")

    play(tmp_path, story)


@pytest.mark.parametrize("first", [python_hello(), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff"])
def test_everything_else_is_passed_on_with_nothing_read(tmp_path: Path, first: bytes) -> None:
    async def story(place: Place) -> None:
        with place.connect() as client:
            client.sendall(first)
            await place.counted("command line")
        assert place.passed == [first]

    play(tmp_path, story)


def test_a_program_of_a_lease_that_is_not_is_told_so(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        with place.connect() as program:
            program.sendall(hello(f"{'f' * 32}.{SESSION}".encode()))
            assert await asyncio.to_thread(program.recv, 64) == NO_SUCH_LEASE
            await place.counted("unknown lease")

    play(tmp_path, story)


def test_a_host_that_refuses_or_is_gone_costs_that_connection_only(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        with place.connect() as program:
            program.sendall(hello())
            await place.host.take()
            await place.counted("refused by worker")
        place.host.path.unlink()
        with place.connect() as program:
            program.sendall(hello())
            await place.counted("worker away")
            assert await asyncio.to_thread(_rest, program) == b""

    play(tmp_path, story, status=4)


def test_who_says_nothing_half_or_leaves_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "FIRST_RECORD_S", 0.2)

    async def story(place: Place) -> None:
        with place.connect() as silent, place.connect() as half, place.connect() as leaving:
            half.sendall(hello()[:100])
            leaving.sendall(hello()[:3])
            leaving.shutdown(socket.SHUT_WR)
            await place.counted("silent", 3)
            for client in (silent, half, leaving):
                assert await asyncio.to_thread(_rest, client) == b""
        assert place.passed == []

    play(tmp_path, story)


def test_of_many_who_say_nothing_the_oldest_goes_and_a_program_comes_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "UNKNOWN_MAX", 50)

    async def story(place: Place) -> None:
        crowd = [place.connect() for _ in range(80)]
        with place.connect() as program:
            program.sendall(hello())
            await place.host.take()
            await place.counted("session")
        assert place.counts["dropped"] >= 30
        for client in crowd:
            client.close()

    play(tmp_path, story)


def test_many_silent_connections_of_one_user_cost_another_user_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "UNKNOWN_MAX", 50)
    peers = iter(["user 1"] + ["user 2"] * 200)
    monkeypatch.setattr(door_module, "local_peer", lambda *_: next(peers))

    async def story(place: Place) -> None:
        with place.connect() as slow:
            slow.sendall(hello()[:100])
            await asyncio.sleep(0.1)
            crowd = [place.connect() for _ in range(150)]
            await place.counted("dropped", 100)
            slow.sendall(hello()[100:])
            await place.host.take()
            await place.counted("session")
        for client in crowd:
            client.close()

    play(tmp_path, story)


def test_a_thousand_connections_in_a_burst_are_all_served(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        clients = []
        for _ in range(1000):
            client = place.connect()
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            clients.append(client)
            if len(clients) % 100 == 0:
                await asyncio.sleep(0)
        await place.counted("command line", 1000)
        for client in clients:
            client.close()

    play(tmp_path, story)


def _rest(client: socket.socket) -> bytes:
    try:
        return client.recv(64)
    except ConnectionResetError:  # what it had sent was never read
        return b""
