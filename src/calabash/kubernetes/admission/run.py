"""The admission server as a program: certificates, namespaces, questions. Wiring."""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import socket
import ssl
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog

from calabash.kubernetes.admission.by_claims import look_up
from calabash.kubernetes.admission.certificates import KeyPair
from calabash.kubernetes.admission.https import HttpsServer
from calabash.kubernetes.admission.scope import NamespaceTerms, namespace_terms
from calabash.kubernetes.admission.service import AdmissionService
from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.admission.trust import CertificateKeeper
from calabash.kubernetes.names import POOL, TENANT
from calabash.kubernetes.shards import pool_of_queue
from calabash.kubernetes.skipped import SkippedObjects
from calabash.model.errors import CalabashError, Reason
from calabash.seams.kube import Kind, KubeClient, KubeStruct, Mirror, MirrorChange, ObjectMeta
from calabash.seams.kube.objects import NAMESPACE, Namespace
from calabash.seams.kube.resources import QUEUE

REFRESH_S = 20.0
RETRY_S = 1.0

_log = structlog.get_logger("admission")


class OwnedQueueSpec(KubeStruct, frozen=True):
    """Where it stands in its tree."""

    parent: str = ""


class OwnedQueue(KubeStruct, frozen=True):
    """A queue, of which only its labels and its parent are read."""

    metadata: ObjectMeta
    spec: OwnedQueueSpec = OwnedQueueSpec()


OWNED_QUEUE = Kind(
    api_version=QUEUE.api_version, name=QUEUE.name, plural=QUEUE.plural, namespaced=False, type=OwnedQueue
)


class AdmissionProgram:
    """Everything that one replica does, from ``start`` to ``stop``.

    Args:
        client: the API server.
        settings: as admission is set up.
        listener: where to listen, when it is not the settings' address.
        names: what the server is called, when it is not behind its service.
        refresh_s: how often certificates are looked at.
    """

    def __init__(
        self,
        client: KubeClient,
        settings: AdmissionSettings,
        *,
        listener: socket.socket | None = None,
        names: tuple[str, ...] = (),
        refresh_s: float = REFRESH_S,
    ) -> None:
        self._client = client
        self._settings = settings
        self._refresh_s = refresh_s
        self._keeper = CertificateKeeper(client, settings, names)
        self._context = server_context()
        self._loaded: KeyPair | None = None
        skipped = SkippedObjects("calabash-admission").note
        self._namespaces: Mirror[Namespace] = Mirror(
            client, NAMESPACE, on_error=lambda e: _log.warning("namespaces", error=str(e)), on_skipped=skipped
        )
        self._tenants: dict[str, str] = {}  # whose queues are, as far as they are a tenant's
        self._pools: dict[str, str] = {}  # where their pods run, as far as that is a pool
        self._queues: Mirror[OwnedQueue] = Mirror(
            client,
            OWNED_QUEUE,
            on_change=self._queue,
            on_error=lambda e: _log.warning("queues", error=str(e)),
            on_skipped=skipped,
        )
        service = AdmissionService(
            settings,
            cached=self._cached,
            asked=self._asked,
            claimed=partial(look_up, client),
            ready=self.ready,
            on_denied=_tell_denied,
        )
        self.server = HttpsServer(
            listener if listener is not None else listen(settings.host, settings.port),
            self._context,
            service.handle,
            report=lambda error: _log.error("a question failed", error=repr(error)),
        )
        self._leaving = False
        self._stopping = threading.Event()
        self._keeping = threading.Thread(target=self._keep, name="certificates", daemon=True)

    def start(self) -> None:
        """Begin; returns at once. Questions are taken when there is a certificate."""
        self._namespaces.start()
        self._queues.start()
        self._keeping.start()

    def ready(self) -> bool:
        """Whether questions are answered from what is known."""
        return self._loaded is not None and self._namespaces.synced() and not self._leaving

    def leave(self) -> None:
        """Say that others should be asked; questions are still answered."""
        self._leaving = True

    def stop(self) -> None:
        """End; questions that are being answered are finished."""
        self._stopping.set()
        self._keeping.join()
        if self._loaded is not None:
            self.server.stop()
        self._queues.stop()
        self._namespaces.stop()

    def refresh(self) -> None:
        """Bring the certificate up to date. Raises CalabashError; the one that is in use stays in use."""
        directory = self._settings.certificate_dir
        if directory:
            pair = _from_directory(Path(directory))
        else:
            pair = self._keeper.refresh(datetime.datetime.now(datetime.UTC)).serving
        if pair != self._loaded:
            self.server.between_handshakes(lambda: load(self._context, pair))
            first, self._loaded = self._loaded is None, pair
            _log.info("certificate loaded", first=first)

    def _keep(self) -> None:
        started = False
        while not self._stopping.is_set():
            try:
                self.refresh()
                wait_s = self._refresh_s
            except (CalabashError, OSError, ValueError) as error:
                _log.warning("certificates", error=str(error))
                wait_s = RETRY_S
            if self._loaded is not None and not started:
                self.server.start()
                started = True
            self._stopping.wait(wait_s)

    def _cached(self, name: str) -> NamespaceTerms | None:
        found = self._namespaces.get(name)
        return self._terms(found) if found is not None else None

    def _asked(self, name: str) -> NamespaceTerms | None:
        found = self._client.get(NAMESPACE, name)
        return self._terms(found) if found is not None else None

    def _terms(self, namespace: Namespace) -> NamespaceTerms:
        metadata = namespace.metadata
        terms = namespace_terms(metadata.name, metadata.labels, metadata.annotations)
        return replace(terms, tenants=self._tenants, pools=self._pools)

    def _queue(self, change: MirrorChange[OwnedQueue]) -> None:
        queue = change.after or change.before
        assert queue is not None
        tenant = queue.metadata.labels.get(TENANT, "") if change.after is not None else ""
        others = {name: whose for name, whose in self._tenants.items() if name != queue.metadata.name}
        self._tenants = others | ({queue.metadata.name: tenant} if tenant else {})
        tree = {
            one.metadata.name: (one.spec.parent, one.metadata.labels.get(POOL, ""))
            for one in self._queues.snapshot().values()
        }
        self._pools = {name: pool for name in tree if (pool := pool_of_queue(name, tree))}


def _tell_denied(namespace: str, name: str, error: CalabashError) -> None:
    _log.info("denied", namespace=namespace, pod=name, reason=error.reason, message=error.message[:500])


def _from_directory(directory: Path) -> KeyPair:
    """What somebody else keeps current, as the kubelet mounts a Secret. Raises CalabashError(BAD_FILE)."""
    try:
        certificate, key = ((directory / name).read_bytes() for name in ("tls.crt", "tls.key"))
    except OSError as error:
        raise CalabashError(
            f"{directory} holds no certificate: {error}",
            reason=Reason.BAD_FILE,
            hint="mount a Secret with tls.crt and tls.key there, or leave certificate_dir out",
        ) from error
    return KeyPair(certificate=certificate, key=key)


def server_context() -> ssl.SSLContext:
    """TLS 1.2 and above; only HTTP/1.1 is offered."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def load(context: ssl.SSLContext, pair: KeyPair) -> None:
    """Use this certificate for new connections. Raises ValueError (ssl.SSLError).

    Not while another thread begins one: the certificate changes before its key, and what is replaced is freed.
    """
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)  # the file system may be read-only
    try:
        os.write(descriptor, pair.certificate + pair.key)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    except ssl.SSLError as error:
        raise ValueError(f"the certificate cannot be used: {error}") from error
    finally:
        os.close(descriptor)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises CalabashError when the address cannot be had."""
    try:
        if not host and socket.has_dualstack_ipv6():
            with contextlib.suppress(OSError):  # no such address on this machine
                return socket.create_server(("", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise CalabashError(
            f"cannot listen on {host} port {port}: {error.strerror}", hint="choose another port in the settings"
        ) from error


def run_admission(client: KubeClient, settings: AdmissionSettings) -> None:
    """Serve until a signal says to end; a second one does not let it take its time."""
    structlog.configure(
        processors=[
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.add_log_level,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
    program = AdmissionProgram(client, settings)
    told, at_once = threading.Event(), threading.Event()

    def end(*_: object) -> None:
        (at_once if told.is_set() else told).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    program.start()
    told.wait()
    program.leave()
    at_once.wait(settings.leaving_s)
    program.stop()
