"""``calabash serve metrics``: construct, run and stop the server of external metrics.

The server begins to serve, and becomes ready, when it has a certificate and has read the nodes. When the authority of
the API servers' client certificates changes, the process ends so that its container is started again, because an SSL
context cannot drop an authority.
"""

from __future__ import annotations

import datetime
import signal
import socket
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import structlog

from calabash.adapters.kube import Kind, KubeClient, KubeStruct, Mirror, ObjectMeta
from calabash.api.part_metrics import ADAPTER_REQUESTS, ADAPTER_SECONDS, ClusterPart
from calabash.kubernetes.client_certificates import TrustedClients
from calabash.kubernetes.metrics.frontproxy import read_front_proxy
from calabash.kubernetes.metrics.series import USED_NODE, UsedNode
from calabash.kubernetes.metrics.service import GROUP, VERSION, MetricsService
from calabash.kubernetes.serving_certificates.authority import KeyPair
from calabash.kubernetes.serving_certificates.keeper import CertificateKeeper
from calabash.kubernetes.serving_certificates.server import expiry, listen_on, probe_server, server_context
from calabash.kubernetes.serving_certificates.settings import CertificateSettings
from calabash.kubernetes.skipped_objects import SkippedObjects
from calabash.kubernetes.telemetry import Telemetry
from calabash.model.errors import CalabashError
from calabash.transport.http1 import Bounds, HttpQuestion, HttpReply
from calabash.transport.small_server import SmallServer

SERVICE = "calabash-metrics"
REFRESH_S = 20.0
RETRY_S = 1.0

log = structlog.get_logger(__name__)


class ApiServiceTarget(KubeStruct, frozen=True):
    """The Kubernetes service to which API servers forward the requests of an API group."""

    namespace: str = ""
    name: str = ""


class ApiServiceSpec(KubeStruct, frozen=True):
    """Specification of an APIService object.

    ``ca_bundle`` is the base64 form of the CA certificate with which the certificate of the service was signed.
    """

    ca_bundle: str = ""
    service: ApiServiceTarget | None = None


class ApiService(KubeStruct, frozen=True):
    """An APIService object: an API group that another server than the API server itself serves."""

    metadata: ObjectMeta
    spec: ApiServiceSpec = ApiServiceSpec()


API_SERVICE = Kind(
    api_version="apiregistration.k8s.io/v1",
    name="APIService",
    plural="apiservices",
    namespaced=False,
    type=ApiService,
)
REGISTERED = f"{VERSION}.{GROUP}"


class MetricsProgram:
    """The metrics program, from ``start`` to ``stop``.

    ``ended`` is set when the process must be restarted. ``port`` is the port on which the server listens.

    Args:
        client: client of the API server.
        namespace: namespace of the product.
        host, port: address on which to serve; port 0 for any free port.
        probes: socket on which to serve the kubelet's probes and the program's own metrics; None to serve neither.
        refresh_s: seconds between two checks of the certificates.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        host: str,
        port: int,
        probes: socket.socket | None = None,
        refresh_s: float = REFRESH_S,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._refresh_s = refresh_s
        settings = CertificateSettings(namespace=namespace, service=SERVICE, secret=f"{SERVICE}-tls", configuration="")
        self._keeper = CertificateKeeper(client, settings, publish=self._register)
        self._server = SmallServer(
            self._handle,
            listen_on(host, port),
            name="external-metrics",
            tls=server_context(),
            admits=self._admits,
            bounds=Bounds(body_bytes=0),
        )
        self.port = self._server.port
        self._serving = False
        self._loaded: KeyPair | None = None
        self._proxy: TrustedClients | None = None
        self.figures = Telemetry(ClusterPart.METRICS)
        self._probes: SmallServer | None = None
        if probes is not None:
            self._probes = probe_server(probes, alive=self.alive, ready=self.ready, metrics=self._metrics)
        self._nodes: Mirror[UsedNode] = Mirror(
            client, USED_NODE, on_change=self._changed, observer=SkippedObjects(SERVICE)
        )
        self._service = MetricsService(client, self._nodes)
        self.ended = threading.Event()
        self._keeping = threading.Thread(target=self._keep, name="metrics-certificates", daemon=True)

    def start(self) -> None:
        """Start all threads and return at once."""
        self._nodes.start()
        self._keeping.start()
        if self._probes is not None:
            self._probes.start()

    def stop(self) -> None:
        """Stop all threads after the requests in progress are answered."""
        self.ended.set()
        self._keeping.join()
        self._server.stop()
        self._nodes.stop()
        if self._probes is not None:
            self._probes.stop()

    def alive(self) -> bool:
        """Return True while the thread runs that loads certificates and starts the HTTPS server."""
        return self._keeping.is_alive()

    def ready(self) -> bool:
        """Return True if requests are answered."""
        return self._serving and not self.ended.is_set()

    def refresh(self) -> None:
        """Renew the server certificate if it is time, and read which client certificates of API servers are accepted.

        Sets ``ended`` if their CA certificate or the accepted names have changed.

        Raises:
            CalabashError, ValueError: a certificate cannot be read; those in use stay in use.
        """
        proxy = read_front_proxy(self._client)
        if self._proxy is not None and proxy != self._proxy:
            log.warning("API servers have another authority: starting anew")
            self.ended.set()
            return
        pair = self._keeper.refresh(datetime.datetime.now(datetime.UTC)).serving
        if pair != self._loaded:
            self._server.renew(server_context(pair, proxy))
            self._loaded, self._proxy = pair, proxy

    async def _handle(self, question: HttpQuestion) -> HttpReply:
        began_s, status = time.monotonic(), HTTPStatus.INTERNAL_SERVER_ERROR
        try:
            reply = await self._service.handle(question)
            status = reply.status
        finally:
            self.figures.count(ADAPTER_REQUESTS, str(status.value))
            self.figures.observe(ADAPTER_SECONDS, time.monotonic() - began_s)
        return reply

    def _metrics(self, question: HttpQuestion) -> HttpReply:
        return self.figures.reply(question, lambda: expiry(self._loaded))

    def _changed(self, _: Any) -> None:
        self._service.changed()

    def _keep(self) -> None:
        while not self.ended.is_set():
            try:
                self.refresh()
                wait_s = self._refresh_s
            except (CalabashError, OSError, ValueError) as error:
                log.warning("certificates", error=str(error))
                wait_s = RETRY_S
            if not self._serving and self._loaded is not None:
                if self._nodes.synced(timeout_s=RETRY_S):
                    self._server.start()
                    self._serving = True
                    log.info("answers API servers", port=self.port)
                else:
                    wait_s = 0.0
            self.ended.wait(wait_s)

    def _admits(self, certificate: Mapping[str, Any] | None) -> bool:
        return self._proxy is not None and self._proxy.admits(certificate)

    def _register(self, bundle: str) -> None:
        """Write the CA certificate into ``caBundle`` of the APIService object, if that object points to this server.

        Otherwise log a warning.

        Args:
            bundle: the CA certificate in base64.
        """
        found = self._client.get(API_SERVICE, REGISTERED)
        target = found.spec.service if found is not None else None
        if found is None or target is None or (target.namespace, target.name) != (self._namespace, SERVICE):
            log.warning("another answers for this group, or nobody is registered", group=GROUP)
        elif found.spec.ca_bundle != bundle:
            self._client.patch(API_SERVICE, REGISTERED, body={"spec": {"caBundle": bundle}})


def run_metrics(client: KubeClient, *, namespace: str, host: str, port: int, probe_port: int) -> None:
    """Serve until SIGTERM or SIGINT, or until other client certificates of API servers are to be accepted."""
    program = MetricsProgram(client, namespace=namespace, host=host, port=port, probes=listen_on(host, probe_port))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: program.ended.set())
    program.start()
    program.ended.wait()
    program.stop()
