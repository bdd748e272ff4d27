"""Many connections of one holder do not keep other holders with valid tokens out."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.certificates import server_context
from tests.unit.gateway.serving.test_slow_clients import WHOLE
from tests.unit.gateway.standin import TOKEN, GatewayWorld

from calabash.api.gateway import GatewayLimits
from calabash.gateway.serving import request_guard
from calabash.gateway.serving import server as serving
from calabash.gateway.serving.server import gateway_server

HANG_S = 60.0


def _flooded(flood: Callable[[int], Awaitable[None]], *, limits: GatewayLimits | None = None) -> None:
    """Assert that 50 requests on new connections beside the flood are answered with 200."""

    async def both() -> None:
        world = GatewayWorld()
        server = gateway_server(world.application, limits or GatewayLimits())
        listener = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0, start_serving=False)
        (sock,) = listener.sockets
        serving = asyncio.ensure_future(server.serve(sockets=[sock.dup()]))
        port = sock.getsockname()[1]
        flooding = asyncio.ensure_future(flood(port))
        try:
            await asyncio.sleep(0.3)
            for _ in range(50):
                async with asyncio.timeout(HANG_S):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(WHOLE)
                    assert b" 200 " in await reader.readline()
                    writer.close()
            assert not flooding.done()
        finally:
            flooding.cancel()
            server.should_exit = True
            await serving

    asyncio.run(both())


@pytest.mark.parametrize(
    "said",
    [b"", b"GET /v1/queues HTTP/1.1\r\nX: ", WHOLE.replace(b"GET", b"POST")[:-2] + b"Content-Length: 9\r\n\r\n{"],
)
def test_valid_token_is_served_beside_more_idle_connections_than_its_peer_may_have(said: bytes) -> None:
    async def flood(port: int) -> None:
        lines = [await asyncio.open_connection("127.0.0.1", port) for _ in range(450)]
        for _, writer in lines:
            writer.write(said)
        await asyncio.Event().wait()

    _flooded(flood)


def test_valid_token_is_served_beside_refused_ones_of_the_same_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_guard, "REFUSAL_S", HANG_S)
    numbers = itertools.count()

    async def guess(port: int) -> None:
        while True:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            bad = f"cal_guess{next(numbers):04}_{'x' * 20}"
            writer.write(WHOLE.replace(TOKEN.encode(), bad.encode()))
            await asyncio.sleep(0.1)

    async def flood(port: int) -> None:
        await asyncio.gather(*(guess(port) for _ in range(10)))

    _flooded(flood, limits=GatewayLimits(refused_per_minute=3, connections_per_address=40))


def test_tls_handshakes_that_are_not_completed_count_for_their_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "HANDSHAKE_S", HANG_S)
    context, authority = server_context(tmp_path)
    trusting = ssl.create_default_context(cafile=authority)
    times_s = []

    async def both() -> None:
        world, limits = GatewayWorld(), GatewayLimits()
        server = gateway_server(world.application, limits, tls=context)
        listener = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0, start_serving=False)
        (sock,) = listener.sockets
        served = asyncio.ensure_future(server.serve(sockets=[sock.dup()]))
        port = sock.getsockname()[1]
        while not server.started:
            await asyncio.sleep(0.01)
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(600)]
        try:
            for reader, _ in silent[: 600 - limits.connections_per_address]:
                async with asyncio.timeout(HANG_S):
                    assert await _ended(reader), "an older handshake goes on beside as many as its peer may have"
            assert not any(reader.at_eof() for reader, _ in silent[-limits.connections_per_address :])
            for _ in range(50):
                begun_s = time.monotonic()
                async with asyncio.timeout(HANG_S):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
                    writer.write(WHOLE)
                    assert b" 200 " in await reader.readline()
                    writer.close()
                times_s.append(time.monotonic() - begun_s)
        finally:
            for _, writer in silent:
                writer.close()
            server.should_exit = True
            await served

    asyncio.run(both())
    print(f"p99 {max(times_s) * 1e3:.0f} ms, median {sorted(times_s)[25] * 1e3:.0f} ms")
    assert sorted(times_s)[25] < 0.5


async def _ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True
