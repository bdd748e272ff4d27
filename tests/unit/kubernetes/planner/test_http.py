"""The small server: bounded, patient with held answers, and quick to hang up when it should."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from calabash.kubernetes.planner.http import BODY_BYTES_MAX, SmallReply, SmallServer


class Handler:
    """Answers with what it was asked; ``/hold`` is held until it is let go, ``/fail`` fails."""

    def __init__(self) -> None:
        self.held = threading.Event()
        self.hung_up = threading.Event()
        self.well = True

    async def __call__(self, method: str, path: str, body: bytes) -> SmallReply:
        if path == "/fail":
            raise ValueError("no")
        if path == "/hold":
            self.held.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.hung_up.set()
                raise
        return SmallReply(body=f"{method} {path} {len(body)}".encode())


@contextmanager
def serving(handler: Handler) -> Iterator[SmallServer]:
    server = SmallServer(handler, host="127.0.0.1", port=0, well=lambda: handler.well, every_s=0.01)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def ask(server: SmallServer, path: str, body: bytes = b"") -> tuple[int, bytes]:
    line = http.client.HTTPConnection(*server.address, timeout=10)
    line.request("POST", path, body)
    reply = line.getresponse()
    found = (reply.status, reply.read())
    line.close()
    return found


def test_many_requests_go_over_one_connection() -> None:
    with serving(Handler()) as server:
        line = http.client.HTTPConnection(*server.address, timeout=10)
        for number in range(5):
            line.request("POST", f"/{number}", b"x" * 100_000)
            assert line.getresponse().read() == f"POST /{number} 100000".encode()
        line.close()


def test_a_handler_that_fails_is_an_answer_and_others_go_on() -> None:
    with serving(Handler()) as server:
        assert ask(server, "/fail") == (500, b"no")
        assert ask(server, "/a") == (200, b"POST /a 0")


def test_who_hangs_up_is_noticed_while_the_answer_is_held() -> None:
    handler = Handler()
    with serving(handler) as server:
        line = socket.create_connection(server.address)
        line.sendall(b"POST /hold HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        assert handler.held.wait(10)
        assert ask(server, "/a")[0] == 200, "nobody waits for it"
        line.close()
        assert handler.hung_up.wait(10)


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        f"POST / HTTP/1.1\r\nContent-Length: {BODY_BYTES_MAX + 1}\r\n\r\n".encode(),
        b"x" * 100_000,
    ],
)
def test_what_is_no_request_of_bounded_size_ends_the_connection(sent: bytes) -> None:
    with serving(Handler()) as server:
        line = socket.create_connection(server.address, timeout=10)
        line.sendall(sent)
        rest = b""
        try:
            while more := line.recv(4096):
                rest += more
        except ConnectionResetError:
            pass
        assert rest == b"" or b" 413 " in rest
        assert ask(server, "/a")[0] == 200


def test_nothing_listens_while_the_planner_is_unwell() -> None:
    handler = Handler()
    with serving(handler) as server:
        line = socket.create_connection(server.address, timeout=10)
        handler.well = False
        assert line.recv(1) == b""  # open connections end too
        with pytest.raises(OSError, match="refused"):
            ask(server, "/a")
        handler.well = True
        for _ in range(1000):
            try:
                assert ask(server, "/a")[0] == 200
                break
            except ConnectionRefusedError:
                threading.Event().wait(0.01)
        else:
            pytest.fail("it does not listen again")


def test_an_address_that_is_taken_is_an_error_at_once() -> None:
    with serving(Handler()) as server:
        other = SmallServer(Handler(), host="127.0.0.1", port=server.address[1])
        with pytest.raises(OSError, match="in use"):
            other.start()
