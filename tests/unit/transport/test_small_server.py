"""The small server: bounded, patient with held answers, and quick to hang up when it should."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

import pytest

from calabash.transport.http1 import Bounds, HttpQuestion, HttpReply
from calabash.transport.listening import listen
from calabash.transport.small_server import BOUNDS, SmallServer


class Handler:
    """Answers with what it was asked; ``/hold`` is held until it is let go, ``/fail`` fails."""

    def __init__(self) -> None:
        self.held = threading.Event()
        self.hung_up = threading.Event()
        self.healthy = True

    async def __call__(self, question: HttpQuestion) -> HttpReply:
        if question.path == "/fail":
            raise ValueError("no")
        if question.path == "/hold":
            self.held.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.hung_up.set()
                raise
        if question.path == "/elsewhere":
            return HttpReply(status=HTTPStatus.SERVICE_UNAVAILABLE, body=b"another leads")
        return HttpReply(body=f"{question.method} {question.path} {len(question.body)}".encode())


@contextmanager
def serving(handler: Handler, bounds: Bounds = BOUNDS) -> Iterator[SmallServer]:
    server = SmallServer(
        handler,
        ("127.0.0.1", 0),
        name="extender",
        healthy=lambda: handler.healthy,
        every_s=0.01,
        cancels=True,
        ending_s=0.0,
        bounds=bounds,
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()


def ask(server: SmallServer, path: str, body: bytes = b"") -> tuple[int, bytes]:
    line = http.client.HTTPConnection(*server.address, timeout=60)
    line.request("POST", path, body)
    reply = line.getresponse()
    found = (reply.status, reply.read())
    line.close()
    return found


def test_many_requests_go_over_one_connection() -> None:
    with serving(Handler()) as server:
        line = http.client.HTTPConnection(*server.address, timeout=60)
        for number in range(5):
            line.request("POST", f"/{number}", b"x" * 100_000)
            assert line.getresponse().read() == f"POST /{number} 100000".encode()
        line.close()


def test_a_handler_that_fails_is_an_answer_and_others_go_on() -> None:
    with serving(Handler()) as server:
        assert ask(server, "/fail") == (500, b"")
        assert ask(server, "/a") == (200, b"POST /a 0")


def test_who_hangs_up_is_noticed_while_the_answer_is_held() -> None:
    handler = Handler()
    with serving(handler) as server:
        line = socket.create_connection(server.address)
        line.sendall(b"POST /hold HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        assert handler.held.wait(60)
        assert ask(server, "/a")[0] == 200, "nobody waits for it"
        line.close()
        assert handler.hung_up.wait(60)


def raw(server: SmallServer, sent: bytes) -> bytes:
    """Send the bytes; return all bytes of the answer until the server closes the connection."""
    with socket.create_connection(server.address, timeout=60) as line:
        line.sendall(sent)
        rest = b""
        while more := line.recv(4096):
            rest += more
    return rest


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (f"POST / HTTP/1.1\r\nContent-Length: {BOUNDS.body_bytes + 1}\r\n\r\n".encode(), 413),
    ],
)
def test_what_is_no_request_of_bounded_size_is_answered_once_and_hung_up_on(sent: bytes, status: int) -> None:
    with serving(Handler()) as server:
        assert raw(server, sent).startswith(b"HTTP/1.1 %d " % status)
        assert ask(server, "/a")[0] == 200


def test_who_is_slow_or_sends_no_end_of_a_head_is_hung_up_on_without_a_word() -> None:
    with serving(Handler(), Bounds(body_s=0.1, head_s=0.1, head_bytes=1 << 20)) as server:
        assert raw(server, b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nab") == b""
        assert raw(server, b"POST / HT") == b""
    with serving(Handler(), Bounds(head_bytes=100)) as server:
        assert raw(server, b"x" * 150) == b""


def test_an_idle_connection_is_closed_for_a_new_one_and_a_held_answer_is_not() -> None:
    handler = Handler()
    with serving(handler, Bounds(connections=2)) as server:
        held = socket.create_connection(server.address, timeout=60)
        held.sendall(b"POST /hold HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        assert handler.held.wait(60)
        for _ in range(5):
            idle = http.client.HTTPConnection(*server.address, timeout=60)
            idle.request("POST", "/a")
            assert idle.getresponse().read() == b"POST /a 0"
        assert not handler.hung_up.is_set()
        held.close()
        assert handler.hung_up.wait(60)


def test_nothing_listens_while_the_planner_is_unwell() -> None:
    handler = Handler()
    with serving(handler) as server:
        line = socket.create_connection(server.address, timeout=60)
        handler.healthy = False
        assert line.recv(1) == b""  # open connections end too
        with pytest.raises(OSError, match="refused"):
            ask(server, "/a")
        handler.healthy = True
        for _ in range(6000):
            try:
                assert ask(server, "/a")[0] == 200
                break
            except ConnectionRefusedError:
                threading.Event().wait(0.01)
        else:
            pytest.fail("it does not listen again")


def test_an_address_that_is_taken_is_an_error_at_once() -> None:
    with serving(Handler()) as server:
        other = SmallServer(Handler(), server.address, name="other")
        with pytest.raises(OSError, match="in use"):
            other.start()


def test_who_was_told_that_another_leads_comes_back_on_another_connection() -> None:
    with serving(Handler()) as server:
        line = http.client.HTTPConnection(*server.address, timeout=60)
        line.request("POST", "/elsewhere")
        reply = line.getresponse()
        assert (reply.status, reply.getheader("Connection"), reply.read()) == (503, "close", b"another leads")
        line.close()


def test_reply_has_further_headers_and_can_close_the_connection() -> None:
    async def last(question: HttpQuestion) -> HttpReply:
        return HttpReply(body=b"x", headers=(("Allow", "GET"),), closes=True)

    server = SmallServer(last, ("127.0.0.1", 0), name="last")
    server.start()
    try:
        sent = raw(server, b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n")
        assert sent.count(b"HTTP/1.1 200") == 1
        assert b"Allow: GET\r\n" in sent
        assert b"Connection: close\r\n" in sent
    finally:
        server.stop()


def test_held_request_is_cancelled_when_the_server_becomes_unhealthy() -> None:
    handler = Handler()
    with serving(handler) as server:
        line = socket.create_connection(server.address, timeout=60)
        line.sendall(b"POST /hold HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        assert handler.held.wait(60)
        handler.healthy = False
        assert handler.hung_up.wait(60)
        assert line.recv(1) == b""


def test_request_of_a_disconnected_client_is_finished_unless_the_server_cancels_requests() -> None:
    began, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    async def slow(question: HttpQuestion) -> HttpReply:
        began.set()
        await asyncio.to_thread(go_on.wait, 60)
        ended.set()
        return HttpReply()

    server = SmallServer(slow, ("127.0.0.1", 0), name="slow")
    server.start()
    try:
        with socket.create_connection(server.address, timeout=60) as line:
            line.sendall(b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
            assert began.wait(60)
        go_on.set()
        assert ended.wait(60)
    finally:
        go_on.set()
        server.stop()


def test_server_without_a_host_is_reached_at_ipv4_addresses() -> None:
    server = SmallServer(Handler(), ("", 0), name="everywhere")
    server.start()
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as line:
            line.sendall(b"GET /a HTTP/1.0\r\n\r\n")
            assert line.recv(4096).startswith(b"HTTP/1.1 200 ")
    finally:
        server.stop()


def test_stop_closes_a_given_socket_also_if_the_server_was_not_started() -> None:
    listener = listen("127.0.0.1", 0)
    SmallServer(Handler(), listener, name="idle").stop()
    assert listener.fileno() == -1
