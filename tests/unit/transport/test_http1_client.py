"""HTTP/1.1 client: what it sends, answers of every framing, and answers of servers that break the protocol."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calabash.transport.http1_client import (
    ClientConnection,
    ClosedError,
    HttpError,
    NotHttpError,
    TooLargeError,
    write_request,
)

LONG_S = 60.0
HEAD = b"HTTP/1.1 200 OK\r\n"


def within(seconds: float = LONG_S) -> float:
    return time.monotonic() + seconds


@contextmanager
def answered(*parts: bytes, ends: bool = True) -> Iterator[ClientConnection]:
    """Yield a connection to a server that sends the parts one by one, and then closes if ``ends``."""
    here, there = socket.socketpair()

    def serve() -> None:
        for part in parts:
            there.sendall(part)
            time.sleep(0.001)
        if ends:
            there.close()

    thread = threading.Thread(target=serve)
    thread.start()
    with ClientConnection(here) as connection:
        yield connection
    thread.join()
    there.close()


def read(connection: ClientConnection, *, bytes_max: int = 1 << 20) -> bytes:
    connection.read_head(within())
    return connection.read_body(within(), bytes_max=bytes_max)


def test_request_has_length_and_type_of_its_body() -> None:
    assert write_request("POST", "/v1/x?a=b", {"Host": "pool"}, b"{}") == (
        b"POST /v1/x?a=b HTTP/1.1\r\nHost: pool\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    )
    assert write_request("GET", "/", {"Host": "pool"}) == b"GET / HTTP/1.1\r\nHost: pool\r\n\r\n"


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_no_part_makes_another_line_of_a_request(method: str, target: str, name: str, value: str) -> None:
    try:
        sent = write_request(method, f"/{target}", {"Host": "a", name: value}, b"")
    except ValueError:
        return
    lines = sent.split(b"\r\n")
    assert sent.count(b"\n") == sent.count(b"\r") == len(lines) - 1
    assert lines[0] == f"{method} /{target} HTTP/1.1".encode()
    assert lines[0].count(b" ") == 2
    assert lines[2] == f"{name}: {value}".encode()


@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["length", "chunks", "end"]), st.integers(1, 50))
def test_body_of_every_framing_is_read_whole_however_it_is_cut(content: bytes, framing: str, size: int) -> None:
    pieces = [content[n : n + size] for n in range(0, len(content), size)]
    if framing == "length":
        raw = HEAD + b"Content-Length: %d\r\n\r\n" % len(content) + content
    elif framing == "chunks":
        chunks = b"".join(b"%x;n=1\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
        raw = HEAD + b"transfer-encoding: Chunked\r\n\r\n" + chunks + b"0\r\nX-Trailer: 1\r\n\r\n"
    else:
        raw = HEAD + b"\r\n" + content
    with answered(*(raw[n : n + size] for n in range(0, len(raw), size))) as connection:
        assert read(connection) == content
        assert connection.reusable is (framing != "end")


def test_interim_answers_are_skipped_up_to_a_limit() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    with answered(interim, HEAD + b"Content-Length: 1\r\n\r\nx") as connection:
        assert read(connection) == b"x"
    with answered(interim * 10_000) as connection, pytest.raises(HttpError, match="interim"):
        read(connection)


@pytest.mark.parametrize(
    "raw",
    [
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxy",
        HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 10_000,
        HEAD + b"X: " + b"y" * (80 << 10),
        b"HTTP/1.1 " + b"2" * 5000 + b" OK\r\n\r\n",
    ],
)
def test_invalid_answer_is_an_error(raw: bytes) -> None:
    with answered(raw) as connection, pytest.raises(HttpError):
        read(connection)


def test_end_of_the_connection_tells_if_an_answer_had_begun() -> None:
    for raw, begun in ((b"", False), (HEAD, True), (HEAD + b"Content-Length: 5\r\n\r\n", True)):
        with answered(raw) as connection, pytest.raises(ClosedError) as closed:
            read(connection)
        assert closed.value.begun is begun
    with answered(b"220 mail.example.org ready") as connection, pytest.raises(NotHttpError):
        read(connection)


def test_body_beyond_the_limit_is_not_read() -> None:
    with answered(HEAD + b"\r\n" + b"x" * 5000) as connection, pytest.raises(TooLargeError):
        read(connection, bytes_max=1000)


def test_head_can_be_read_again_after_its_time_limit() -> None:
    with answered(HEAD, ends=False) as connection, pytest.raises(TimeoutError):
        connection.read_head(within(0.05))
    here, there = socket.socketpair()
    with ClientConnection(here) as connection, there:
        there.sendall(HEAD)
        with pytest.raises(TimeoutError):
            connection.read_head(within(0.05))
        there.sendall(b"Content-Length: 1\r\n\r\nx")
        assert read(connection) == b"x"


def test_answer_of_a_server_that_refuses_early_is_read() -> None:
    here, there = socket.socketpair()
    there.sendall(b"HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno")
    there.close()
    with ClientConnection(here) as connection:
        assert connection.ask(b"GET / HTTP/1.1\r\n\r\n", within(), bytes_max=100) == b"no"
        assert connection.status == 429
        assert not connection.reusable


def test_client_imports_nothing_slow() -> None:
    """``calabash run`` imports it."""
    code = "import sys, socket; old = set(sys.modules); import calabash.transport.http1_client; print(*set(sys.modules) - old)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert set(done.stdout.split()) <= {
        "__future__",
        "calabash",
        "calabash.transport",
        "calabash.transport.http1_client",
    }
