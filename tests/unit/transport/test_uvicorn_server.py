"""Limits of the server that runs ASGI applications: which connection is closed, and how fast the server stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from calabash.transport.connections import Activity, Connections
from calabash.transport.uvicorn_server import HttpServer, ServerOptions

HANG_S = 60.0
HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n{"


async def _application(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def _served(options: ServerOptions, client: Callable[[int], Awaitable[None]]) -> None:
    async def both() -> None:
        server = HttpServer(_application, options)
        listening = await asyncio.get_running_loop().create_server(
            asyncio.Protocol, "127.0.0.1", 0, start_serving=False
        )
        (sock,) = listening.sockets
        serving = asyncio.ensure_future(server.serve(sockets=[sock.dup()]))
        try:
            await asyncio.wait_for(client(sock.getsockname()[1]), HANG_S)
        finally:
            server.stop()
            await serving

    asyncio.run(both())


def test_client_that_sends_a_body_byte_by_byte_stays_the_oldest() -> None:
    table = Connections(most=8, per_peer=2)

    async def client(port: int) -> None:
        slow = await asyncio.open_connection("127.0.0.1", port)
        slow[1].write(HEAD)
        await _until(lambda: _activities(table) == [Activity.ASKING])
        other = await asyncio.open_connection("127.0.0.1", port)
        await _until(lambda: len(table) == 2)
        for _ in range(5):
            slow[1].write(b" ")
            await asyncio.sleep(0.02)
        _, third = await asyncio.open_connection("127.0.0.1", port)
        assert await _ended(slow[0])
        assert len(table) == 2
        assert not other[0].at_eof()
        for writer in (slow[1], other[1], third):
            writer.close()

    _served(ServerOptions(connections=table), client)


def test_connection_without_a_whole_head_is_closed_in_time_and_an_answered_one_is_kept() -> None:
    table = Connections(most=8, per_peer=8)

    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nX: ")
        assert await _ended(reader)
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(4):
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.2)
        writer.close()
        await _until(lambda: len(table) == 0)

    _served(ServerOptions(connections=table, request_s=0.5), client)


def test_idle_server_stops_at_once_and_calls_before_shutdown() -> None:
    called = []

    async def client(port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.1)
        writer.close()
        called.append(time.monotonic())

    _served(ServerOptions(before_shutdown=lambda: called.append(time.monotonic())), client)
    begun_s, told_s = called
    assert told_s - begun_s < 0.9, "the server did not wait for its next tick"


def _activities(table: Connections) -> list[Activity]:
    return [connection.activity for there in table._by_peer.values() for connection in there]


async def _until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.01)


async def _ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True
