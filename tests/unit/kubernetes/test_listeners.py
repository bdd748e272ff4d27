"""Tests of all listeners of the cluster components against a peer that opens all connections it can.

Other peers are still answered, and the cost of the connections is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPSConnection
from typing import cast

import pytest

from calabash.adapters.host.tcp_peers import local_peer
from calabash.api.part_metrics import ClusterPart
from calabash.exporter import serving
from calabash.exporter.page import MetricsPage
from calabash.exporter.reading import Reader
from calabash.exporter.serving import CONNECTIONS_MAX, Listening, page_server
from calabash.kubernetes.serving_certificates.authority import make_authority, make_serving
from calabash.kubernetes.serving_certificates.server import PROBE_BOUNDS, probe_server, server_context
from calabash.kubernetes.telemetry import BOUNDS as FIGURES_BOUNDS
from calabash.kubernetes.telemetry import Telemetry, metrics_server
from calabash.transport.http1 import Bounds, HttpQuestion, HttpReply
from calabash.transport.listening import listen
from calabash.transport.small_server import BOUNDS, SmallServer

FLOODER, OTHER = "127.0.0.2", "127.0.0.1"
WAIT_S = 60.0


@dataclass(frozen=True)
class Target:
    """A server under test: its port, its limit of connections, and a count of its open sockets."""

    port: int
    most: int
    tls: bool
    method: str
    path: str
    sockets: Callable[[], int]


async def answer(question: HttpQuestion) -> HttpReply:
    return HttpReply(body=b"%d" % len(question.body))


def tls_context() -> ssl.SSLContext:
    now = datetime.datetime.now(datetime.UTC)
    return server_context(make_serving(make_authority(now, 10), ("server",), now, 5))


def accepted(port: int) -> int:
    """Count the sockets of this process that are connected from its port."""
    count = 0
    for line in [*_lines("/proc/self/net/tcp"), *_lines("/proc/self/net/tcp6")]:
        local, state = line.split()[1], line.split()[3]
        count += local.endswith(f":{port:04X}") and state == "01"
    return count


def _lines(path: str) -> list[str]:
    with contextlib.suppress(OSError), open(path) as text:
        return text.read().splitlines()[1:]
    return []


@contextlib.contextmanager
def https(bounds: Bounds, context: ssl.SSLContext | None, method: str, path: str) -> Iterator[Target]:
    server = SmallServer(answer, listen("", 0), name="https", tls=context, bounds=bounds)
    server.start()
    try:
        port = server.port
        yield Target(port, bounds.connections, context is not None, method, path, lambda: accepted(port))
    finally:
        server.stop()


@contextlib.contextmanager
def admission() -> Iterator[Target]:
    with https(BOUNDS, tls_context(), "POST", "/mutate") as target:
        yield target


@contextlib.contextmanager
def metrics() -> Iterator[Target]:
    with https(Bounds(body_bytes=0), tls_context(), "GET", "/apis") as target:
        yield target


@contextlib.contextmanager
def probes() -> Iterator[Target]:
    server = probe_server(
        listen("", 0), alive=lambda: True, ready=lambda: True, metrics=Telemetry(ClusterPart.ADMISSION).reply
    )
    server.start()
    try:
        port = server.port
        yield Target(port, PROBE_BOUNDS.connections, False, "GET", "/readyz", lambda: accepted(port))
    finally:
        server.stop()


@contextlib.contextmanager
def figures() -> Iterator[Target]:
    server = metrics_server(Telemetry(ClusterPart.AGENT), tuple, host="0.0.0.0", port=0)
    server.start()
    try:
        port = server.address[1]
        yield Target(port, FIGURES_BOUNDS.connections, False, "GET", "/metrics", lambda: accepted(port))
    finally:
        server.stop()


@contextlib.contextmanager
def extender() -> Iterator[Target]:
    bounds = Bounds(connections=64, per_peer=64)
    server = SmallServer(answer, ("0.0.0.0", 0), name="extender", cancels=True, bounds=bounds)
    server.start()
    try:
        port = server.address[1]
        yield Target(port, bounds.connections, False, "POST", "/filter", lambda: accepted(port))
    finally:
        server.stop()


@contextlib.contextmanager
def exporter(tls: ssl.SSLContext | None) -> Iterator[Target]:
    server = page_server(MetricsPage(cast(Reader, None)), Listening(host="0.0.0.0", port=0, tls=tls))
    server.start()
    try:
        port = server.port
        yield Target(port, CONNECTIONS_MAX, tls is not None, "GET", "/healthz", lambda: accepted(port))
    finally:
        server.stop()


LISTENERS: dict[str, Callable[[], contextlib.AbstractContextManager[Target]]] = {
    "admission": admission,
    "metrics": metrics,
    "probes": probes,
    "metrics of an agent": figures,
    "extender": extender,
    "exporter": lambda: exporter(None),
    "exporter-tls": lambda: exporter(tls_context()),
}


def trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def connected(target: Target) -> socket.socket:
    line = socket.create_connection((OTHER, target.port), timeout=WAIT_S, source_address=(FLOODER, 0))
    return trusting().wrap_socket(line) if target.tls else line


def idle(target: Target) -> socket.socket:
    return connected(target)


def half_handshake(target: Target) -> socket.socket:
    line = socket.create_connection((OTHER, target.port), timeout=WAIT_S, source_address=(FLOODER, 0))
    line.sendall(b"\x16\x03\x01\x02\x00\x01" if target.tls else b"")
    return line


def slow_header(target: Target) -> socket.socket:
    line = connected(target)
    line.sendall(b"POST / HTTP/1.1\r\nHost: x\r\n")
    return line


def slow_body(target: Target) -> socket.socket:
    line = connected(target)
    line.sendall(b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\nx")
    return line


FLOODS = [idle, half_handshake, slow_header, slow_body]


@pytest.fixture(autouse=True)
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def ask(target: Target, body: bytes | None = None) -> int:
    if target.tls:
        connection: HTTPConnection = HTTPSConnection(OTHER, target.port, timeout=WAIT_S, context=trusting())
    else:
        connection = HTTPConnection(OTHER, target.port, timeout=WAIT_S)
    with contextlib.closing(connection):
        connection.request(target.method, target.path, body=body)
        reply = connection.getresponse()
        reply.read()
        return reply.status


@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.__name__)
@pytest.mark.parametrize("name", LISTENERS)
def test_a_flood_of_one_peer_keeps_no_other_from_being_answered_and_its_cost_is_bounded(
    name: str, flood: Callable[[Target], socket.socket]
) -> None:
    with LISTENERS[name]() as target:
        threads = threading.active_count()
        lines: list[socket.socket] = []

        def one(_: int) -> None:
            with contextlib.suppress(OSError):  # it was closed for a newer one
                lines.append(flood(target))

        try:
            with ThreadPoolExecutor(8) as several:
                list(several.map(one, range(target.most + 40)))
            for _ in range(5):
                assert ask(target) == 200
            assert until(lambda: target.sockets() <= target.most + 1)
            assert threading.active_count() <= threads + 8, "no thread for a connection"
        finally:
            for line in lines:
                line.close()


def test_connection_to_the_exporter_counts_for_the_local_user_at_its_other_end(monkeypatch: pytest.MonkeyPatch) -> None:
    peers: list[str] = []

    def peer(connection: socket.socket, address: str) -> str:
        peers.append(local_peer(connection, address))
        return peers[-1]

    monkeypatch.setattr(serving, "local_peer", peer)
    with exporter(None) as target:
        assert ask(target) == 200
    assert peers == [f"user {os.geteuid()}"]


def until(check: Callable[[], bool]) -> bool:
    end = time.monotonic() + WAIT_S
    while not check():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.__name__)
def test_a_connection_that_stays_silent_is_closed_soon(flood: Callable[[Target], socket.socket]) -> None:
    bounds = Bounds(first_s=0.2, head_s=0.2, body_s=0.2)
    with https(bounds, None, "GET", "/") as target:
        line = flood(target)
        while line.recv(4096):
            pass  # a status may come before the end
        line.close()


def test_bodies_of_one_peer_are_bounded_in_all_and_another_peers_body_is_taken() -> None:
    bounds = Bounds(body_bytes=1 << 20, held_bytes=2 << 20, body_s=60.0)
    held: list[int] = []
    server = SmallServer(answer, listen("", 0), name="bodies", bounds=bounds)
    server.start()
    target = Target(server.port, bounds.connections, False, "POST", "/", lambda: 0)
    lines: list[socket.socket] = []
    try:
        for _ in range(12):
            line = connected(target)
            line.sendall(b"POST / HTTP/1.1\r\nContent-Length: 1048576\r\n\r\n")
            with contextlib.suppress(OSError):
                line.sendall(b"x" * 1_000_000)
            lines.append(line)
            held.append(server._connections._held_bytes)
        for _ in range(3):
            assert ask(target, b"y" * (1 << 20)) == 200
            held.append(server._connections._held_bytes)
    finally:
        for line in lines:
            line.close()
        server.stop()
    assert max(held) <= bounds.held_bytes


def test_a_body_that_finds_no_memory_is_answered_with_503_and_when_to_come_again() -> None:
    began, go_on = threading.Event(), threading.Event()

    async def slow(question: HttpQuestion) -> HttpReply:
        began.set()
        await asyncio.to_thread(go_on.wait, WAIT_S)
        return HttpReply()

    bounds = Bounds(body_bytes=100, held_bytes=100)
    server = SmallServer(slow, listen("127.0.0.1", 0), name="slow", bounds=bounds)
    server.start()
    try:
        first = HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
        first.request("POST", "/", body=b"x" * 100)
        assert began.wait(WAIT_S)
        second = HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
        second.request("POST", "/", body=b"x")
        reply = second.getresponse()
        assert (reply.status, reply.getheader("Retry-After")) == (503, "1")
        go_on.set()
        assert first.getresponse().status == 200
        second.close()
        second.request("POST", "/", body=b"x")
        assert second.getresponse().status == 200
    finally:
        go_on.set()
        server.stop()
