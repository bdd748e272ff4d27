"""Gateway of a real pool that receives random hostile bytes: it refuses them or disconnects, and continues to serve."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections import Counter
from collections.abc import Iterator

import pytest
from bench._console_session import ConsoleSession
from tests.daemons.network import Network, network
from tests.daemons.wire_fuzz import Exchange, WireFuzz

EXCHANGES, AT_ONCE = 500, 16
LOG_BYTES_MAX = 1 << 18
QUIET_S, WHOLE_S = 0.5, 30.0  # from the last byte, and from the first one
STATUS = re.compile(rb"(?:^|[\n}>])HTTP/1\.1 (\d{3}) ")
UNEXPECTED = ("Traceback (most recent call last)", "failed unexpectedly", "internal error of the", "Exception in")


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with network(tmp_path_factory.mktemp("fuzz") / "home") as made:
        yield made


async def _sent(address: tuple[str, int], exchange: Exchange) -> bytes:
    """Send an exchange; return the bytes until the gateway closed the connection or was silent for a while."""
    reader, writer = await asyncio.open_connection(*address)
    found = b""
    try:
        for part in exchange.parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)
        if exchange.end == "reset":
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if exchange.end in {"close", "reset"}:
            return found
        if exchange.end == "shut":
            writer.write_eof()
        async with asyncio.timeout(WHOLE_S):
            while data := await asyncio.wait_for(reader.read(1 << 16), QUIET_S):
                found += data
    except (OSError, TimeoutError):
        pass
    finally:
        writer.close()
    return found


def _served(net: Network, session: ConsoleSession) -> None:
    for name, token in net.tokens.items():
        assert net.ask("GET", "/v1/me", token=token).status == 200, name
    assert session.ask("GET", "/queues").status == 200


@pytest.mark.parametrize("seed", range(4))
def test_hostile_bytes_are_refused_and_valid_credentials_are_served_afterwards(net: Network, seed: int) -> None:
    net.person(f"fuzz{seed}")
    net.tokens["admin"] = net.world.client.post("/v1/tokens", {})["secret"]
    session = ConsoleSession.begun(net.address, net.world.client.post("/v1/tokens", {"login": True})["secret"])
    fuzz = WireFuzz(seed, "{}:{}".format(*net.address), tuple(net.tokens.values()), session.proved)
    statuses, wrong = Counter[int](), list[str]()

    async def attack() -> None:
        room = asyncio.Semaphore(AT_ONCE)

        async def one(number: int, exchange: Exchange) -> None:
            async with room:
                answer = await _sent(net.address, exchange)
            found = [int(status) for status in STATUS.findall(answer)]
            statuses.update(found)
            timed_out = 504 not in found or b'"timeout"' in answer
            if any(status >= 500 and status != 504 for status in found) or not timed_out:
                failed = re.sub(rb".*?(?=HTTP/1.1 5)", b"", answer, count=1, flags=re.DOTALL)
                wrong.append(f"WRONG {number} {exchange} was answered {failed[:4000]!r}")

        await asyncio.gather(*(one(n, fuzz.exchange()) for n in range(EXCHANGES)))

    asyncio.run(attack())
    print(sorted(statuses.items()))
    assert not wrong, "\n".join(wrong)[:20_000]
    assert {200, 400, 401, 404, 405} <= set(statuses), "the generator makes too few kinds of requests"
    _served(net, session)
    log = (net.world.home / "pool.log").read_text(errors="replace")
    assert [mark for mark in UNEXPECTED if mark in log] == [], log[-20_000:]
    assert [name for name, token in net.tokens.items() if token in log] == [], "the log has tokens in it"
    assert len(log) < LOG_BYTES_MAX
