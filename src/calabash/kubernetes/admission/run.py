"""The admission program: one replica of the HTTPS server, its certificates, and its caches of namespaces and queues."""

from __future__ import annotations

import datetime
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from calabash.adapters.kube import (
    Kind,
    KubeClient,
    KubeStruct,
    Mirror,
    MirrorChange,
    MirrorObserver,
    ObjectMeta,
    SkippedObject,
)
from calabash.adapters.kube.objects.core import NAMESPACE, Namespace
from calabash.adapters.kube.objects.resources import QUEUE
from calabash.api.part_metrics import ADMISSION_OWNERS, ADMISSION_REQUESTS, ADMISSION_SECONDS, ClusterPart
from calabash.kubernetes.admission.claim_pods import look_up
from calabash.kubernetes.admission.owners import OwnerReader
from calabash.kubernetes.admission.scope import (
    ClaimsAsked,
    NamespaceTerms,
    OwnerAnswer,
    OwnerResult,
    namespace_terms,
)
from calabash.kubernetes.admission.service import LOOKUP_S, AdmissionService, ReviewResult
from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.client_certificates import TrustedClients
from calabash.kubernetes.dialects.pod import AskingClaim, AskingOwner
from calabash.kubernetes.objects.names import POOL, TENANT
from calabash.kubernetes.objects.shards import pool_of_queue
from calabash.kubernetes.serving_certificates.authority import KeyPair
from calabash.kubernetes.serving_certificates.keeper import CertificateKeeper
from calabash.kubernetes.serving_certificates.server import expiry, listen_on, probe_server, server_context
from calabash.kubernetes.skipped_objects import SkippedObjects
from calabash.kubernetes.telemetry import Telemetry
from calabash.model.errors import CalabashError, Reason
from calabash.transport.http1 import HttpQuestion, HttpReply
from calabash.transport.small_server import SmallServer

REFRESH_S = 20.0
RETRY_S = 1.0

_log = structlog.get_logger("admission")


class OwnedQueueSpec(KubeStruct, frozen=True):
    """The part of a queue's specification that admission reads: the name of the parent queue, "" for none."""

    parent: str = ""


class OwnedQueue(KubeStruct, frozen=True):
    """A queue, of which admission reads only the labels (tenant and pool) and the parent."""

    metadata: ObjectMeta
    spec: OwnedQueueSpec = OwnedQueueSpec()


OWNED_QUEUE = Kind(
    api_version=QUEUE.api_version, name=QUEUE.name, plural=QUEUE.plural, namespaced=False, type=OwnedQueue
)


class QueueFailures:
    """Observer of the mirror of queues: notes whether their definition is missing, and passes all calls on."""

    def __init__(self, observer: MirrorObserver) -> None:
        self._observer = observer
        self.undefined = False

    def mirror_failed(self, kind: Kind[Any], error: Exception) -> None:
        self.undefined = isinstance(error, CalabashError) and error.reason is Reason.NOT_FOUND
        self._observer.mirror_failed(kind, error)

    def object_skipped(self, skipped: SkippedObject) -> None:
        self._observer.object_skipped(skipped)


class AdmissionProgram:
    """One replica of the admission server, from ``start`` to ``stop``; implements the Protocols of its service.

    Args:
        client: client of the API server.
        settings: settings of admission.
        listener: socket on which to serve; None to listen on the address of the settings.
        probes: socket on which to serve the kubelet's probes and the metrics; None to serve neither.
        names: host names of the server certificate, if the server is not reached through its Kubernetes service.
        refresh_s: seconds between two checks whether the certificates have changed.
    """

    def __init__(
        self,
        client: KubeClient,
        settings: AdmissionSettings,
        *,
        listener: socket.socket | None = None,
        probes: socket.socket | None = None,
        names: tuple[str, ...] = (),
        refresh_s: float = REFRESH_S,
    ) -> None:
        self._client = client
        self._settings = settings
        self._refresh_s = refresh_s
        self._keeper = CertificateKeeper(client, settings.certificates, names)
        self._loaded: tuple[KeyPair, TrustedClients | None] | None = None
        skipped = SkippedObjects("calabash-admission")
        self._namespaces: Mirror[Namespace] = Mirror(client, NAMESPACE, observer=skipped)
        self._tenants: dict[str, str] = {}  # the tenant of each queue that has one
        self._pools: dict[str, str] = {}  # the pool of each queue that has one
        self._queue_failures = QueueFailures(skipped)
        self._queues: Mirror[OwnedQueue] = Mirror(
            client, OWNED_QUEUE, on_change=self._queue, observer=self._queue_failures
        )
        self._owners = OwnerReader(client, settings.gang_table, settings.extended_resources, settings.topology_levels)
        service = AdmissionService(settings, facts=self, listener=self)
        self.server = SmallServer(
            service.handle,
            listener if listener is not None else listen_on(settings.host, settings.port),
            name="admission",
            tls=server_context(),
            admits=self._admits if settings.client_authority else None,
        )
        self.figures = Telemetry(ClusterPart.ADMISSION)
        self.probes: SmallServer | None = None
        if probes is not None:
            self.probes = probe_server(probes, alive=self.alive, ready=self.ready, metrics=self._metrics)
        self._serving = False
        self._leaving = False
        self._stopping = threading.Event()
        self._keeping = threading.Thread(target=self._keep, name="certificates", daemon=True)

    def start(self) -> None:
        """Start all threads and return at once. The HTTPS server starts when there is a certificate."""
        self._namespaces.start()
        self._queues.start()
        self._keeping.start()
        if self.probes is not None:
            self.probes.start()

    def alive(self) -> bool:
        """Return True while the thread runs that loads certificates and starts the HTTPS server."""
        return self._keeping.is_alive()

    def ready(self) -> bool:
        """Return True if reviews are answered, all namespaces and queues are known, and the replica is not leaving.

        Without the queues, a pod could use the queue of another tenant. A cluster without the definition of queues has none.
        """
        queues_known = self._queues.synced() or self._queue_failures.undefined
        return self._serving and self._namespaces.synced() and queues_known and not self._leaving

    def leave(self) -> None:
        """Report not ready from now on, so that API servers use other replicas; reviews are answered until ``stop``."""
        self._leaving = True

    def stop(self) -> None:
        """Stop all threads after the reviews in progress are answered."""
        self._stopping.set()
        self._keeping.join()
        self.server.stop()
        self._queues.stop()
        self._namespaces.stop()
        if self.probes is not None:
            self.probes.stop()

    def refresh(self) -> None:
        """Load the server certificate and the authorities of client certificates if they changed.

        Raises:
            CalabashError: the certificate or the authorities cannot be read; the server keeps those it uses.
        """
        directory = self._settings.certificate_dir
        if directory:
            pair = _from_directory(Path(directory))
        else:
            pair = self._keeper.refresh(datetime.datetime.now(datetime.UTC)).serving
        wanted = (pair, _clients(self._settings))
        if wanted != self._loaded:
            self.server.renew(server_context(*wanted))
            first, self._loaded = self._loaded is None, wanted
            _log.info("certificate loaded", first=first)

    def denied(self, namespace: str, name: str, error: CalabashError) -> None:
        _log.info("denied", namespace=namespace, pod=name, reason=error.reason, message=error.message[:500])

    def answered(self, path: str, result: ReviewResult, seconds: float) -> None:
        self.figures.count(ADMISSION_REQUESTS, path, result.value)
        self.figures.observe(ADMISSION_SECONDS, seconds, path)

    def _metrics(self, question: HttpQuestion) -> HttpReply:
        return self.figures.reply(question, lambda: expiry(self._loaded[0] if self._loaded is not None else None))

    def _admits(self, certificate: Mapping[str, Any] | None) -> bool:
        clients = self._loaded[1] if self._loaded is not None else None
        return clients is not None and clients.admits(certificate)

    def _keep(self) -> None:
        while not self._stopping.is_set():
            try:
                self.refresh()
                wait_s = self._refresh_s
            except (CalabashError, OSError, ValueError) as error:
                _log.warning("certificates", error=str(error))
                wait_s = RETRY_S
            if self._loaded is not None and not self._serving:
                self.server.start()
                self._serving = True
            self._stopping.wait(wait_s)

    def cached_terms(self, namespace: str) -> NamespaceTerms | None:
        found = self._namespaces.get(namespace)
        return self._terms(found) if found is not None else None

    def read_terms(self, namespace: str) -> NamespaceTerms | None:
        found = self._client.get(NAMESPACE, namespace)
        return self._terms(found) if found is not None else None

    def read_claims(self, namespace: str, claims: Sequence[AskingClaim], by_name: Mapping[str, int]) -> ClaimsAsked:
        return look_up(self._client, namespace, claims, by_name)

    def read_owner(self, namespace: str, owner: AskingOwner) -> OwnerAnswer:
        answer = self._owners.read(namespace, owner, LOOKUP_S)
        if answer.result is OwnerResult.FORBIDDEN:
            _log.warning("owner", namespace=namespace, kind=owner.kind[:63], message=answer.warning)
        return answer

    def owner_answered(self, result: OwnerResult) -> None:
        self.figures.count(ADMISSION_OWNERS, result.value)

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


def _from_directory(directory: Path) -> KeyPair:
    """Read a certificate and its key from a directory in which a Secret of type ``kubernetes.io/tls`` is mounted.

    Raises:
        CalabashError: BAD_FILE if the files cannot be read.
    """
    try:
        certificate, key = ((directory / name).read_bytes() for name in ("tls.crt", "tls.key"))
    except OSError as error:
        raise CalabashError(
            f"{directory} contains no certificate that can be read: {error}",
            reason=Reason.BAD_FILE,
            hint="mount a Secret with tls.crt and tls.key there, or remove the setting certificate_dir",
        ) from error
    return KeyPair(certificate=certificate, key=key)


def _clients(settings: AdmissionSettings) -> TrustedClients | None:
    """Return the trusted clients according to the settings, or None if every client is accepted.

    Raises:
        CalabashError: BAD_FILE if the authority cannot be read.
    """
    if not settings.client_authority:
        return None
    try:
        authority = Path(settings.client_authority).read_text()
    except (OSError, UnicodeError) as error:
        raise CalabashError(
            f"{settings.client_authority} contains no certificate of an authority that can be read: {error}",
            reason=Reason.BAD_FILE,
            hint="mount a ConfigMap with the authority of the API servers' client certificates there",
        ) from error
    return TrustedClients(authority, settings.client_names)


def run_admission(client: KubeClient, settings: AdmissionSettings) -> None:
    """Serve until SIGTERM or SIGINT arrives, and for ``settings.leaving_s`` seconds after it.

    In these seconds API servers learn that the replica is not ready. A second signal stops the program at once.
    """
    structlog.configure(
        processors=[
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.add_log_level,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
    program = AdmissionProgram(client, settings, probes=listen_on(settings.host, settings.probe_port))
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
