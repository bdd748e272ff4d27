"""Asynchronous client of the pool, against a server that counts connections and closes them in the middle of an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from calabash.adapters.pool.streams import PoolStreams
from calabash.model.errors import CalabashError, Reason

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def _answer(content: bytes, *, status: str = "200 OK", more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(content)}\r\n{more}\r\n".encode() + content


def _with_pool(path: Path, serve: Serve, ask: Callable[[PoolStreams], Awaitable[None]]) -> int:
    """Run a client against a pool; return the number of connections that the pool accepted."""
    seen = 0

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        seen += 1
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def main() -> None:
        server = await asyncio.start_unix_server(connected, str(path))
        pool = PoolStreams(str(path))
        try:
            await ask(pool)
        finally:
            pool.close()
            server.close()

    asyncio.run(main())
    return seen


async def _always(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(_answer(b'{"asked": "%s"}' % head.split()[1]))


def test_questions_one_after_another_share_a_connection_and_those_at_once_have_their_own(tmp_path: Path) -> None:
    async def ask(pool: PoolStreams) -> None:
        for number in range(3):
            assert await pool.call("GET", f"/{number}") == {"asked": f"/{number}"}
        both = await asyncio.gather(pool.call("GET", "/a"), pool.call("GET", "/b"))
        assert list(both) == [{"asked": "/a"}, {"asked": "/b"}]

    assert _with_pool(tmp_path / "s", _always, ask) == 2


def test_a_kept_connection_that_has_ended_costs_no_answer(tmp_path: Path) -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_answer(b"{}"))
        await writer.drain()

    async def ask(pool: PoolStreams) -> None:
        for _ in range(3):
            assert await pool.call("GET", "/v1/status") == {}

    assert _with_pool(tmp_path / "s", once, ask) == 3


def test_what_changes_something_is_asked_once_only(tmp_path: Path) -> None:
    asked = 0

    async def counting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        while await reader.readuntil(b"\r\n\r\n"):
            asked += 1
            if asked > 1:
                return
            writer.write(_answer(b"{}"))

    async def ask(pool: PoolStreams) -> None:
        await pool.call("POST", "/first")
        with pytest.raises(CalabashError) as told:
            await pool.call("POST", "/second")
        assert told.value.reason is Reason.POOL_DOWN

    _with_pool(tmp_path / "s", counting, ask)
    assert asked == 2


@pytest.mark.parametrize(
    "sent", [b"", b"220 mail\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"]
)
def test_what_is_no_whole_answer_says_that_the_pool_is_down(tmp_path: Path, sent: bytes) -> None:
    async def breaking(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)

    async def ask(pool: PoolStreams) -> None:
        with pytest.raises(CalabashError) as told:
            await pool.call("GET", "/v1/status")
        assert told.value.reason is Reason.POOL_DOWN

    _with_pool(tmp_path / "s", breaking, ask)


def test_a_refusal_has_the_pools_reason_and_nobody_at_the_socket_is_a_pool_that_is_down(tmp_path: Path) -> None:
    async def refusing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_answer(b'{"reason": "not_permitted", "message": "no"}', status="403 Forbidden"))

    async def ask(pool: PoolStreams) -> None:
        with pytest.raises(CalabashError, match="no") as told:
            await pool.call("GET", "/v1/status")
        assert told.value.reason is Reason.NOT_PERMITTED
        with pytest.raises(CalabashError) as absent:
            await PoolStreams(str(tmp_path / "nobody")).call("GET", "/v1/status")
        assert absent.value.reason is Reason.POOL_DOWN

    _with_pool(tmp_path / "s", refusing, ask)


@pytest.mark.parametrize(
    ("method", "path", "value"),
    [
        ("GET", "/v1/devices/x HTTP/1.1\r\ncalabash-session: other\r\nx:", ""),
        ("GET", "/v1/devices/x\n", ""),
        ("GET", "/v1/devices/ä", ""),
        ("GET", "x", ""),
        ("GET /x", "/", ""),
        ("GET", "/", "x\r\ncalabash-session: other"),
        ("GET", "/", "\x00"),
    ],
)
def test_text_that_would_make_another_request_is_refused(tmp_path: Path, method: str, path: str, value: str) -> None:
    async def ask(pool: PoolStreams) -> None:
        with pytest.raises(CalabashError, match="is not a valid request") as told:
            await pool.ask(method, path, headers={"x": value})
        assert told.value.reason is Reason.BAD_REQUEST

    assert _with_pool(tmp_path / "s", _always, ask) == 0
