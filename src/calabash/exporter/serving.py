"""HTTP server of the page that Prometheus scrapes, ``GET /metrics``, and of ``/healthz``.

Every wait has a timeout, and the number of connections is small. A scraper sends a bearer token if the settings require
one. A connection serves one request.
"""

from __future__ import annotations

import asyncio
import hmac
import signal
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http import HTTPStatus

from calabash.adapters.exposition import CONTENT_TYPE
from calabash.adapters.host.tcp_peers import local_peer
from calabash.exporter.page import MetricsPage
from calabash.model.errors import CalabashError, Reason
from calabash.transport.http1 import Bounds, HttpQuestion, HttpReply
from calabash.transport.small_server import SmallServer

CONNECTIONS_MAX = 32
PER_PEER_MAX = 16
TEXT = "text/plain"
BOUNDS = Bounds(body_bytes=0, connections=CONNECTIONS_MAX, per_peer=PER_PEER_MAX, write_s=30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Address to listen on and the conditions for access.

    Args:
        host: address to listen on.
        port: TCP port; 0 for any free port.
        token: bearer token that clients must send; "" permits every client.
        tls: TLS context; None for plain HTTP.
    """

    host: str
    port: int
    token: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None


def page_server(page: MetricsPage, listening: Listening) -> SmallServer:
    """Return the HTTP server of a page of metrics; the caller starts and stops it."""

    async def answer(question: HttpQuestion) -> HttpReply:
        reply = await _answer(page, listening.token, question)
        return replace(reply, headers=(*reply.headers, ("Cache-Control", "no-store")), closes=True)

    at = (listening.host, listening.port)
    return SmallServer(answer, at, name="exporter", tls=listening.tls, peer=local_peer, bounds=BOUNDS)


def serve_until_told(page: MetricsPage, listening: Listening, *, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; call ``ready`` with HOST:PORT once it listens.

    Raises:
        CalabashError: the port is in use or not permitted.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = page_server(page, listening)
    try:
        server.start()
    except OSError as error:
        raise CalabashError(
            f"{listening.host}:{listening.port} cannot be listened on: {error.strerror or error}",
            reason=Reason.CONFLICT,
            hint="choose another with --listen HOST:PORT",
        ) from None
    host, port = server.address
    try:
        ready(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        stop.wait()
    finally:
        server.stop()


async def _answer(page: MetricsPage, token: str, question: HttpQuestion) -> HttpReply:
    if question.path == "/healthz":
        return HttpReply(body=b"ok\n", content_type=TEXT)
    if token and not hmac.compare_digest(question.authorization.encode("latin-1"), b"Bearer " + token.encode()):
        wanted = (("WWW-Authenticate", "Bearer"),)
        return HttpReply(status=HTTPStatus.UNAUTHORIZED, body=b"a token is needed\n", content_type=TEXT, headers=wanted)
    if question.path != "/metrics":
        return HttpReply(status=HTTPStatus.NOT_FOUND, body=b"see /metrics\n", content_type=TEXT)
    if question.method != "GET":
        return HttpReply(status=HTTPStatus.METHOD_NOT_ALLOWED, content_type=TEXT, headers=(("Allow", "GET"),))
    return HttpReply(body=await asyncio.to_thread(page.text), content_type=CONTENT_TYPE)
