"""Tests that slow clients are disconnected after a bounded time, and other clients are answered meanwhile."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
from tests.unit.gateway.standin import TOKEN, GatewayWorld

from calabash.gateway.serving import request_guard
from calabash.gateway.serving import server as serving_server
from calabash.gateway.serving.server import gateway_server

SHORT_S, HANG_S, LARGE = 0.3, 60.0, 32 << 20
WHOLE = f"GET /v1/queues HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
LARGE_WANTED = WHOLE.replace(b"/v1/queues", b"/v1/devices")


def _posted(rest: bytes) -> bytes:
    return WHOLE.replace(b"GET /v1/queues", b"PUT /v1/queues/q").removesuffix(b"\r\n") + rest


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the gateway's limits of time to seconds."""
    monkeypatch.setattr(serving_server, "REQUEST_S", SHORT_S)
    monkeypatch.setattr(serving_server, "SEND_S", SHORT_S)
    monkeypatch.setattr(request_guard, "BODY_S", SHORT_S)


def _served(client: Callable[[int], Awaitable[None]], answers: dict[str, object] | None = None) -> None:
    async def both() -> None:
        world = GatewayWorld()
        world.pool.answers.update(answers or {})
        server = gateway_server(world.application, world.settings.limits)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(16)
            serving_ = asyncio.ensure_future(server.serve(sockets=[listener]))
            try:
                await asyncio.wait_for(client(listener.getsockname()[1]), HANG_S)
            finally:
                server.should_exit = True
                await serving_

    asyncio.run(both())


async def _hung_up_on(port: int, data: bytes, drip: bytes = b"") -> bytes:
    """Send the text, then byte after byte; return the bytes received until the gateway closed the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        dripping = asyncio.ensure_future(_drip(writer, drip))
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            dripping.cancel()
    finally:
        writer.close()


async def _drip(writer: asyncio.StreamWriter, drip: bytes) -> None:
    while drip:
        await asyncio.sleep(SHORT_S / 10)
        writer.write(drip)


async def _answered(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(WHOLE)
    found = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return found


@pytest.mark.parametrize(
    ("data", "drip"),
    [
        (b"", b""),
        (b"GET /v1/queues HTTP/1.1\r\nX: ", b"y"),
        (_posted(b"Content-Length: 60000\r\n\r\n{"), b" "),
        (_posted(b"Transfer-Encoding: chunked\r\n\r\n"), b"1\r\n \r\n"),
    ],
    ids=["nothing", "head", "body", "chunks"],
)
def test_who_sends_slowly_is_hung_up_on_and_others_are_answered(data: bytes, drip: bytes) -> None:
    async def client(port: int) -> None:
        slow = asyncio.ensure_future(_hung_up_on(port, data, drip))
        assert b" 200 " in await _answered(port)
        assert b" 200 " not in await slow

    _served(client)


def test_an_answer_that_nobody_reads_is_given_up() -> None:
    async def client(port: int) -> None:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
            await asyncio.get_running_loop().sock_sendall(sock, LARGE_WANTED)
            # What builds an answer of that size has the loop of both for a while, which no other request is to wait for.
            found = len(await asyncio.get_running_loop().sock_recv(sock, 1))
            assert found == 1
            assert b" 200 " in await _answered(port)
            assert await _hung_up_on(port, b"GET /nothing") == b"", "by now the time of the other one is over too"
            while True:
                try:
                    chunk = await asyncio.get_running_loop().sock_recv(sock, 1 << 16)
                except ConnectionError:
                    break
                found += len(chunk)
                if not chunk:
                    break
            assert found < LARGE, "the rest was dropped"

    _served(client, {"/v1/devices": {"items": [{"name": "x" * LARGE}]}})
