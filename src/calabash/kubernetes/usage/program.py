"""Usage collection as part of the server: its certificate, its listener, and the authority that agents trust.

Agents trust the authority in a ConfigMap, which is mounted into their pods. The Helm chart creates the ConfigMap, and
this program writes the authority into it.
"""

from __future__ import annotations

import base64
import datetime
import socket
import threading
from collections.abc import Callable, Iterable, Sequence

import structlog

from calabash.adapters.kube import KubeClient
from calabash.adapters.kube.objects.core import CONFIG_MAP
from calabash.adapters.store import Store
from calabash.kubernetes.serving_certificates.authority import KeyPair
from calabash.kubernetes.serving_certificates.keeper import CertificateKeeper
from calabash.kubernetes.serving_certificates.server import expiry, listen_on, server_context
from calabash.kubernetes.serving_certificates.settings import CertificateSettings
from calabash.kubernetes.telemetry import Sample
from calabash.kubernetes.usage.attribution import Attribution, TenantOfQueue, TenantTree
from calabash.kubernetes.usage.collection import UsageCollection
from calabash.model.allocation import UsageRecord
from calabash.model.errors import CalabashError

SERVICE = "calabash-usage"
AUTHORITY = f"{SERVICE}-ca"
AUTHORITY_KEY = "ca.crt"
REFRESH_S = 20.0
RETRY_S = 1.0

log = structlog.get_logger(__name__)


class UsageProgram:
    """Server of the usage collection. It begins to serve when it has a certificate; errors are logged and retried.

    ``port`` is the port on which the server listens.

    Args:
        client: client of the API server.
        store: the database.
        namespace: namespace of the product.
        host, port: address on which to serve; port 0 for any free port.
        listener: listening socket to use instead of the address; None to use the address.
        attribute: returns the tenant and the project of a queue; None to use the tree of Queue objects.
        names: host names of the certificate, if the server is not reached through its Kubernetes service.
        taken: called with usage records after they were committed to the database.
        refresh_s: seconds between two checks of the certificate.
    """

    def __init__(
        self,
        client: KubeClient,
        store: Store,
        *,
        namespace: str,
        host: str = "",
        port: int = 0,
        listener: socket.socket | None = None,
        attribute: TenantOfQueue | None = None,
        names: tuple[str, ...] = (),
        taken: Callable[[Sequence[UsageRecord]], None] = lambda _: None,
        refresh_s: float = REFRESH_S,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._refresh_s = refresh_s
        settings = CertificateSettings(namespace=namespace, service=SERVICE, secret=f"{SERVICE}-tls", configuration="")
        self._keeper = CertificateKeeper(client, settings, names, publish=self._publish)
        self._loaded: KeyPair | None = None
        self.collection = UsageCollection(
            store,
            client,
            namespace=namespace,
            listener=listener or listen_on(host, port),
            context=server_context(),
            attribution=Attribution(client, attribute or TenantTree(client)),
            taken=taken,
        )
        self.port = self.collection.server.port
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="usage-collection", daemon=True)

    def start(self) -> None:
        """Start the threads and return at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the threads. A commit in progress is finished."""
        self._stop.set()
        self._thread.join()

    def expiry(self) -> Iterable[Sample]:
        """Return the metric of the time at which the certificate expires; empty while there is no certificate."""
        return expiry(self._loaded)

    def _run(self) -> None:
        started = False
        while not self._stop.is_set():
            try:
                self.refresh()
                wait_s = self._refresh_s
            except (CalabashError, OSError, ValueError) as error:
                log.warning("certificate of the collection", error=str(error))
                wait_s = RETRY_S
            if self._loaded is not None and not started:
                self.collection.server.start()
                started = True
                log.info("collects usage", port=self.port)
            self._stop.wait(wait_s)
        self.collection.stop()

    def refresh(self) -> None:
        """Renew the certificate and its authority if it is time.

        Raises:
            CalabashError, ValueError: the certificates cannot be read or written; the one in use stays in use.
        """
        pair = self._keeper.refresh(datetime.datetime.now(datetime.UTC)).serving
        if pair != self._loaded:
            self.collection.server.renew(server_context(pair))
            self._loaded = pair

    def _publish(self, bundle: str) -> None:
        """Write the authority into the ConfigMap from which agents read it.

        Args:
            bundle: the authority's certificates in base64.
        """
        text = base64.b64decode(bundle).decode()
        found = self._client.get(CONFIG_MAP, AUTHORITY, self._namespace)
        if found is None:
            body = {"metadata": {"name": AUTHORITY, "namespace": self._namespace}, "data": {AUTHORITY_KEY: text}}
            self._client.create(CONFIG_MAP, body, self._namespace)
        elif found.data.get(AUTHORITY_KEY) != text:
            self._client.patch(CONFIG_MAP, AUTHORITY, self._namespace, body={"data": {AUTHORITY_KEY: text}})
