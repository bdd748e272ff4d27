"""Dispatch of connections on the server's port to workers and to the HTTPS server."""

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

from calabash.broker.server import port as port_module
from calabash.broker.server.first_record import NO_SUCH_LEASE
from calabash.broker.server.port import PortDispatcher

KEY = "5c" * 32


class PortWorld:
    """Dispatcher on a loopback socket with a stand-in for the parent of workers."""

    def __init__(self, directory: Path, *, status: int = 0) -> None:
        self.host = HostStandIn(directory / "worker.sock", status)
        self.counts: Counter[str] = Counter()
        self.passed: list[bytes] = []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.dispatcher = PortDispatcher(self.listener, self)

    def session_target(self, lease: str, session: str, peer: str) -> tuple[str, str] | None:
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


def play(tmp_path: Path, scenario: Callable[[PortWorld], Coroutine[Any, Any, None]], *, status: int = 0) -> None:
    async def begin() -> None:
        world = PortWorld(tmp_path, status=status)
        serving = asyncio.create_task(world.dispatcher.serve())
        try:
            async with asyncio.timeout(60):
                await scenario(world)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            world.listener.close()
            world.host.close()

    asyncio.run(begin())


def test_program_connection_is_passed_unread_to_the_worker_of_its_lease(tmp_path: Path) -> None:
    async def scenario(world: PortWorld) -> None:
        with world.connect() as program:
            program.sendall(hello() + b"and more")
            there = await world.host.take()
            await world.counted("session")
            there.setblocking(True)
            assert there.recv(4096) == hello() + b"and more"
            there.sendall(b"welcome")
            assert await asyncio.to_thread(program.recv, 64) == b"welcome"
        (greeting,) = world.host.greetings
        assert greeting == (b"CALABASH", 1, 2, 0, bytes.fromhex(SESSION), bytes.fromhex(KEY))

    play(tmp_path, scenario)


def test_hello_sent_in_single_bytes_is_accepted(tmp_path: Path) -> None:
    async def scenario(world: PortWorld) -> None:
        with world.connect() as program:
            program.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in hello():
                program.send(bytes([byte]))
                await asyncio.sleep(0)
            await world.host.take()
            await world.counted("session")

    play(tmp_path, scenario)


@pytest.mark.parametrize("first", [python_hello(), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff"])
def test_other_connection_is_passed_on_unread(tmp_path: Path, first: bytes) -> None:
    async def scenario(world: PortWorld) -> None:
        with world.connect() as client:
            client.sendall(first)
            await world.counted("command line")
        assert world.passed == [first]

    play(tmp_path, scenario)


def test_program_with_unknown_lease_gets_an_alert(tmp_path: Path) -> None:
    async def scenario(world: PortWorld) -> None:
        with world.connect() as program:
            program.sendall(hello(f"{'f' * 32}.{SESSION}".encode()))
            assert await asyncio.to_thread(program.recv, 64) == NO_SUCH_LEASE
            await world.counted("unknown lease")

    play(tmp_path, scenario)


def test_refusing_or_missing_worker_affects_only_that_connection(tmp_path: Path) -> None:
    async def scenario(world: PortWorld) -> None:
        with world.connect() as program:
            program.sendall(hello())
            await world.host.take()
            await world.counted("refused by worker")
        world.host.path.unlink()
        with world.connect() as program:
            program.sendall(hello())
            await world.counted("worker away")
            assert await asyncio.to_thread(_rest, program) == b""

    play(tmp_path, scenario, status=4)


def test_silent_incomplete_or_closed_connection_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_module, "FIRST_RECORD_S", 0.2)

    async def scenario(world: PortWorld) -> None:
        with world.connect() as silent, world.connect() as half, world.connect() as leaving:
            half.sendall(hello()[:100])
            leaving.sendall(hello()[:3])
            leaving.shutdown(socket.SHUT_WR)
            await world.counted("silent", 3)
            for client in (silent, half, leaving):
                assert await asyncio.to_thread(_rest, client) == b""
        assert world.passed == []

    play(tmp_path, scenario)


def test_oldest_silent_connection_is_dropped_for_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_module, "UNKNOWN_MAX", 50)

    async def scenario(world: PortWorld) -> None:
        crowd = [world.connect() for _ in range(80)]
        with world.connect() as program:
            program.sendall(hello())
            await world.host.take()
            await world.counted("session")
        assert world.counts["dropped"] >= 30
        for client in crowd:
            client.close()

    play(tmp_path, scenario)


def test_silent_connections_of_one_user_do_not_displace_another_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_module, "UNKNOWN_MAX", 50)
    peers = iter(["user 1"] + ["user 2"] * 200)
    monkeypatch.setattr(port_module, "local_peer", lambda *_: next(peers))

    async def scenario(world: PortWorld) -> None:
        with world.connect() as slow:
            slow.sendall(hello()[:100])
            await asyncio.sleep(0.1)
            crowd = [world.connect() for _ in range(150)]
            await world.counted("dropped", 100)
            slow.sendall(hello()[100:])
            await world.host.take()
            await world.counted("session")
        for client in crowd:
            client.close()

    play(tmp_path, scenario)


def test_cancelled_dispatcher_closes_its_port_and_the_connections_without_a_first_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = PortWorld(tmp_path)
        address = world.listener.getsockname()[:2]
        serving = asyncio.create_task(world.dispatcher.serve())
        with world.connect() as silent:
            async with asyncio.timeout(60):
                while not len(world.dispatcher._unknown):
                    await asyncio.sleep(0.005)
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            assert await asyncio.to_thread(_rest, silent) == b""
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address)
        assert world.counts == {"dropped": 1}
        world.host.close()

    asyncio.run(scenario())


def test_burst_of_a_thousand_connections_is_served(tmp_path: Path) -> None:
    async def scenario(world: PortWorld) -> None:
        clients = []
        for _ in range(1000):
            client = world.connect()
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            clients.append(client)
            if len(clients) % 100 == 0:
                await asyncio.sleep(0)
        await world.counted("command line", 1000)
        for client in clients:
            client.close()

    play(tmp_path, scenario)


def _rest(client: socket.socket) -> bytes:
    try:
        return client.recv(64)
    except ConnectionResetError:  # what it had sent was never read
        return b""
