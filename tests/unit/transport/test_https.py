"""A server that bounds everything: who sends too much, too slowly or nonsense is hung up on, the others are answered."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPSConnection

import pytest
from structlog.testing import capture_logs

from calabash.kubernetes.serving_certificates.authority import KeyPair, make_authority, make_serving
from calabash.kubernetes.serving_certificates.server import listen, server_context
from calabash.model.errors import CalabashError
from calabash.transport.http1 import Bounds, HttpQuestion, HttpReply
from calabash.transport.https_server import BOUNDS, HttpsServer


async def echo(question: HttpQuestion) -> HttpReply:
    if question.path == "/fault":
        raise ZeroDivisionError("on purpose")
    return HttpReply(body=question.body or question.path.encode(), content_type="text/plain")


@contextmanager
def serving(bounds: Bounds = BOUNDS) -> Iterator[HttpsServer]:
    served = HttpsServer(listen("127.0.0.1", 0), None, echo, bounds=bounds)
    served.start()
    try:
        yield served
    finally:
        served.stop()


@pytest.fixture
def server() -> Iterator[HttpsServer]:
    with serving() as served:
        yield served


def raw(server: HttpsServer, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(data)
        received = b""
        while part := connection.recv(65536):
            received += part
        return received


def test_one_connection_carries_many_questions(server: HttpsServer) -> None:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    for i in range(20):
        connection.request("POST", f"/x?timeout=5s&n={i}", body=b"y" * i)
        reply = connection.getresponse()
        assert (reply.status, reply.read()) == (200, b"y" * i if i else b"/x")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", 200),
        (b"GET / HTTP/1.0\r\n\r\n", 200),
    ],
)
def test_what_is_not_understood_is_answered_once_and_hung_up_on(server: HttpsServer, sent: bytes, status: int) -> None:
    assert raw(server, sent).startswith(b"HTTP/1.1 %d " % status)


def test_a_head_without_end_is_hung_up_on(server: HttpsServer) -> None:
    assert raw(server, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000) == b""


def test_failed_request_is_logged_and_the_connection_continues(server: HttpsServer) -> None:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    with capture_logs() as lines:
        connection.request("GET", "/fault")
        reply = connection.getresponse()
    assert reply.status == HTTPStatus.INTERNAL_SERVER_ERROR
    assert reply.read() == b""
    connection.request("GET", "/fine")
    assert connection.getresponse().read() == b"/fine"
    assert [(line["path"], line["error"]) for line in lines] == [("/fault", "ZeroDivisionError('on purpose')")]


def test_who_is_slow_or_silent_is_hung_up_on() -> None:
    with serving(Bounds(body_s=0.1, head_s=0.1, first_s=0.1)) as server:
        assert raw(server, b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nab") == b""
        assert raw(server, b"POST / HT") == b""


def test_the_longest_idle_connection_is_closed_for_a_new_one_and_the_others_are_served() -> None:
    with serving(Bounds(connections=3)) as server:
        kept = [HTTPConnection("127.0.0.1", server.port, timeout=60) for _ in range(3)]
        for connection in (*kept, kept[0]):
            connection.request("GET", "/a")
            assert connection.getresponse().read() == b"/a"
        new = HTTPConnection("127.0.0.1", server.port, timeout=60)
        for connection in (new, kept[0], kept[2]):
            connection.request("GET", "/b")
            assert connection.getresponse().read() == b"/b"
        assert kept[1].sock is not None
        assert kept[1].sock.recv(1) == b""


def test_many_ask_at_once(server: HttpsServer) -> None:
    def ask(number: int) -> bytes:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", "/", body=b"%d" % number)
        body: bytes = connection.getresponse().read()
        connection.close()
        return body

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(200))) == [b"%d" % number for number in range(200)]


def test_a_question_that_is_being_answered_is_finished_when_the_server_stops() -> None:
    began, go_on = threading.Event(), threading.Event()

    async def slow(question: HttpQuestion) -> HttpReply:
        began.set()
        import asyncio

        await asyncio.to_thread(go_on.wait, 60)
        return HttpReply(body=b"done")

    server = HttpsServer(listen("127.0.0.1", 0), None, slow)
    server.start()
    idle = HTTPConnection("127.0.0.1", server.port, timeout=60)
    idle.connect()
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", "/")
    assert began.wait(60)
    stopper = threading.Thread(target=server.stop)
    stopper.start()
    assert idle.sock is not None
    assert idle.sock.recv(1) == b""
    go_on.set()
    assert connection.getresponse().read() == b"done"
    stopper.join(60)
    assert not stopper.is_alive()


def pair(name: str) -> KeyPair:
    """A certificate that is its own authority."""
    now = datetime.datetime.now(datetime.UTC)
    return make_serving(make_authority(now, 10), (name,), now, 5)


def test_no_handshake_fails_while_the_certificate_is_replaced_again_and_again() -> None:
    pairs = [pair("one"), pair("two")]
    server = HttpsServer(listen("127.0.0.1", 0), server_context(pairs[0]), echo)
    server.start()
    enough = threading.Event()

    def ask() -> int:
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        count = 0
        while not enough.is_set():
            connection = HTTPSConnection("127.0.0.1", server.port, timeout=60, context=trusting)
            connection.request("GET", "/a")
            assert connection.getresponse().read() == b"/a"
            connection.close()
            count += 1
        return count

    try:
        with ThreadPoolExecutor(3) as several:
            asking = [several.submit(ask) for _ in range(3)]
            for number in range(100):
                server.renew(server_context(pairs[number % 2]))
            enough.set()
            assert all(one.result() for one in asking)
    finally:
        server.stop()


def test_a_certificate_that_does_not_belong_to_its_key_is_refused() -> None:
    one, two = pair("one"), pair("two")
    with pytest.raises(ValueError, match="the certificate cannot be used"):
        server_context(KeyPair(certificate=one.certificate, key=two.key))


def test_it_listens_on_every_address_when_none_is_named_and_says_when_it_cannot() -> None:
    with listen("", 0) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=60):
            pass
        with pytest.raises(CalabashError, match=f"cannot listen on 127.0.0.1 port {port}"):
            listen("127.0.0.1", port)
