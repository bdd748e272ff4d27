"""TLS contexts, listening sockets and the probe server of programs that API servers call."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Iterable
from http import HTTPStatus

from calabash.api.part_metrics import CERTIFICATE_EXPIRY
from calabash.kubernetes.client_certificates import TrustedClients
from calabash.kubernetes.serving_certificates.authority import KeyPair, ends_at_s
from calabash.kubernetes.telemetry import PATH as METRICS_PATH
from calabash.kubernetes.telemetry import Sample
from calabash.model.errors import CalabashError
from calabash.transport.http1 import Bounds, HttpQuestion, HttpReply
from calabash.transport.listening import listen
from calabash.transport.small_server import SmallServer

PROBE_BOUNDS = Bounds(body_bytes=0, connections=32, per_peer=8, idle_s=5.0)


def server_context(pair: KeyPair | None = None, clients: TrustedClients | None = None) -> ssl.SSLContext:
    """Return a context for HTTP/1.1 servers with TLS 1.2 or later.

    Args:
        pair: the server certificate; None for a context with which every handshake fails until it is replaced.
        clients: the clients whose certificates are accepted; None to accept all clients and ask for no certificate.

    Raises:
        ValueError: a certificate cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if pair is not None:
        _load(context, pair)
    if clients is not None:
        try:
            clients.trust(context)
        except ssl.SSLError as error:
            raise ValueError(f"the authority of clients cannot be used: {error}") from error
    return context


def _load(context: ssl.SSLContext, pair: KeyPair) -> None:
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)  # the file system may be read-only
    try:
        os.write(descriptor, pair.certificate + pair.key)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    except ssl.SSLError as error:
        raise ValueError(f"the certificate cannot be used: {error}") from error
    finally:
        os.close(descriptor)


def expiry(pair: KeyPair | None) -> Iterable[Sample]:
    """Yield the metric of the time at which a certificate expires; nothing if ``pair`` is None."""
    if pair is not None:
        yield CERTIFICATE_EXPIRY, (), ends_at_s(pair.certificate)


def probe_server(
    listener: socket.socket,
    *,
    alive: Callable[[], bool],
    ready: Callable[[], bool],
    metrics: Callable[[HttpQuestion], HttpReply],
) -> SmallServer:
    """Return an HTTP server for the kubelet's probes and for Prometheus: ``/healthz``, ``/readyz`` and ``/metrics``.

    It has its own thread and its own limit of connections, so that clients of the main server cannot make probes fail.

    Args:
        listener: listening socket.
        alive: returns True if ``/healthz`` answers with success; otherwise the kubelet restarts the program.
        ready: returns True if ``/readyz`` answers with success.
        metrics: answers a request for ``/metrics``.
    """

    async def answer(question: HttpQuestion) -> HttpReply:
        if question.path == METRICS_PATH:
            return await asyncio.to_thread(metrics, question)
        if question.method != "GET" or question.path not in ("/healthz", "/readyz"):
            return HttpReply(status=HTTPStatus.NOT_FOUND)
        if question.path == "/readyz" and not ready():
            return HttpReply(status=HTTPStatus.SERVICE_UNAVAILABLE, body=b"not ready", content_type="text/plain")
        if question.path == "/healthz" and not alive():
            return HttpReply(
                status=HTTPStatus.SERVICE_UNAVAILABLE, body=b"a thread has ended", content_type="text/plain"
            )
        return HttpReply(body=b"ok", content_type="text/plain")

    return SmallServer(answer, listener, name="probes", bounds=PROBE_BOUNDS)


def listen_on(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket, as ``listen`` does. Raises CalabashError if the address cannot be used."""
    try:
        return listen(host, port)
    except OSError as error:
        raise CalabashError(
            f"cannot listen on {host} port {port}: {error.strerror}", hint="choose another port in the settings"
        ) from error
