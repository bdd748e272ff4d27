"""``calabash serve cluster``: construct the server of a Kubernetes cluster, run it, and stop it at a signal.

One replica serves at a time: the one that holds the Lease object. A file lock also prevents two replicas from using the
same home directory. A server that loses the lease ends with an error, so that the kubelet or the service manager starts
it again and it waits for the lease.
"""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import structlog

from calabash.adapters.clock import SystemClock
from calabash.adapters.host.processes import user_name
from calabash.adapters.kube import KubeClient
from calabash.adapters.kube.objects.resources import TENANT
from calabash.adapters.pool.client import socket_path
from calabash.adapters.store import Store, open_store
from calabash.kubernetes.leader.lease import RENEW_EVERY_S, Election
from calabash.kubernetes.leader.loop import LeadershipLoop
from calabash.kubernetes.server.cluster import ClusterFace
from calabash.kubernetes.server.devices import DeviceOrders
from calabash.kubernetes.server.handlers import ClusterContext, handlers
from calabash.kubernetes.server.journal_recorder import ClusterRecorder
from calabash.kubernetes.server.metrics import ServerFigures
from calabash.kubernetes.server.network_reconciler import KubeNetworkKeeper
from calabash.kubernetes.server.notice_sources import waiting_pods
from calabash.kubernetes.server.open_usage import LAG_MAX_S, ClusterUsage
from calabash.kubernetes.server.queues import QueueWriter
from calabash.kubernetes.server.settings import ClusterOrder
from calabash.kubernetes.server.state import ClusterState
from calabash.kubernetes.server.tenancy import ClusterTenancy
from calabash.kubernetes.server.tenant_reconciler import COMPONENT, TenantKeeper
from calabash.kubernetes.telemetry import serving
from calabash.kubernetes.usage.program import UsageProgram
from calabash.model.allocation import UsageRecord
from calabash.model.errors import CalabashError, Reason
from calabash.platform.access.identities import Identities
from calabash.platform.access.permission import HostAccounts, Permission
from calabash.platform.access.tenancy_changes import TenancyChanges
from calabash.platform.access.tokens import Tokens
from calabash.platform.audit.trail import AuditTrail
from calabash.platform.billing.service import Billing
from calabash.platform.context import Operations
from calabash.platform.handlers.application import served
from calabash.platform.home.directory import own_home
from calabash.platform.home.housekeeping import Housekeeper
from calabash.platform.home.logs import LOG_FILE
from calabash.platform.http.gateway_supervisor import ConsoleListener, gateway_socket
from calabash.platform.http.request_limits import UserRequestLimits
from calabash.platform.http.server import Listener, Server
from calabash.platform.networks.wiring import networking
from calabash.platform.notifications.wiring import notifying
from calabash.platform.tenancy.store import TenancyStore
from calabash.transport.listening import listen_unix

SYNCED_S = 120.0
POLL_S = 0.5
WAIT_FOR_LEAD_S = 0.1

log = structlog.get_logger(__name__)


def run_cluster(client: KubeClient, order: ClusterOrder) -> None:
    """Wait for the lease and serve until SIGTERM or SIGINT.

    Raises:
        CalabashError: the server cannot serve, or has lost the lease.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    ClusterProgram(client, order).run()


class LeaseWatch:
    """Thread that stops the server when it has lost the lease, because another server may then serve.

    ``lost`` is True if that happened.
    """

    def __init__(self, lead: LeadershipLoop, server: Server) -> None:
        self._lead, self._server = lead, server
        self._term = lead.term()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self.lost = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(POLL_S):
            if self._lead.term() != self._term:
                self.lost = True
                log.warning("another server may lead now: this one ends", holder=self._lead.holder())
                self._server.stop()
                return


class ClusterProgram:
    """One replica of the server. ``run`` waits for the lease and serves.

    ``metrics_address`` is the host and port of the metrics once they are served, and ("", 0) before.

    Args:
        client: client of the Kubernetes API server.
        order: options of the command line.
    """

    def __init__(self, client: KubeClient, order: ClusterOrder) -> None:
        self._client = client
        self._order = order
        self._server: Server | None = None
        self._ended = threading.Event()
        self.metrics_address = ("", 0)

    def run(self) -> None:
        """Wait for the lease and serve until ``stop`` is called.

        Raises:
            CalabashError: the server cannot serve, or has lost the lease.
        """
        with ExitStack() as stack:
            stack.enter_context(own_home(self._order.home))
            store = open_store(self._order.database)
            stack.callback(store.close)
            store.check_writable()
            lead = self._lead(stack)
            if lead is not None:
                self._serve(store, lead, stack)

    def stop(self) -> None:
        """Make ``run`` return. May be called from any thread."""
        self._ended.set()
        if self._server is not None:
            self._server.stop()

    def _serve_metrics(self, figures: ServerFigures, stack: ExitStack) -> None:
        port = self._order.metrics_port
        if port is None:
            return
        self.metrics_address = stack.enter_context(serving(figures.server(host="", port=port), port))
        log.info("serves metrics", port=self.metrics_address[1])

    def _lead(self, stack: ExitStack) -> LeadershipLoop | None:
        """Wait for the lease; return the loop that renews it, or None if ``stop`` is called first."""
        order = self._order
        identity = order.identity or f"{COMPONENT}-{secrets.token_hex(4)}"
        election = Election(
            self._client, namespace=order.namespace, name=COMPONENT, identity=identity, now_s=time.monotonic
        )
        lead = LeadershipLoop(election, every_s=RENEW_EVERY_S, stepped=lambda _: None)
        lead.start()
        stack.callback(lead.resign)
        stack.callback(lead.stop)
        told = False
        while not lead.term():
            if self._ended.wait(WAIT_FOR_LEAD_S):
                return None
            if not told and lead.holder() not in {"", identity}:
                log.info("another server leads; this one waits", holder=lead.holder())
                told = True
        return lead

    def _serve(self, store: Store, lead: LeadershipLoop, stack: ExitStack) -> None:
        client, order = self._client, self._order
        clock = SystemClock()
        woken = threading.Event()
        state = ClusterState(client, changed=woken.set)
        _watch(client, state, stack)
        figures = ServerFigures(lambda: [node.metadata.name for node in state.nodes()])
        self._serve_metrics(figures, stack)
        tables = ClusterTenancy(store.tenancy, client, state)
        tenancy = TenancyStore(tables)
        keeper = TenantKeeper(client, state, tables=tables, tenancy=tenancy, due=woken)
        permission = Permission(os.geteuid(), everybody=False, people=tenancy.people, accounts=ServerAccounts())
        cluster = ClusterFace(state, tenancy=tenancy, permission=permission)
        tokens = Tokens(store.tokens, clock)
        networks, certificates = networking(store.networks, permission=permission, people=tenancy.people, clock=clock)
        changes = TenancyChanges(
            tenancy=tenancy,
            tokens=tokens,
            permission=permission,
            identities=Identities(tenancy, order.settings.console.oidc),
            require_no_networks=networks.require_none_of,
        )
        reached = store.usage_reader.reached(clock.now_s() - LAG_MAX_S)
        running = ClusterUsage(cluster.moment, cluster.place, clock, reached=reached)
        billing = Billing(store, clock, running if order.usage_port else None)
        stack.callback(billing.close)
        audit = AuditTrail(order.home, store.audit, clock)
        audit.start()
        stack.callback(audit.stop)
        operations = Operations(
            permission=permission,
            tokens=tokens,
            tenancy=tenancy,
            changes=changes,
            billing=billing,
            store=store,
            audit=audit,
            fairness=UserRequestLimits(order.settings.user, exempt=lambda uid: uid in {0, os.geteuid()}),
            pool=cluster,
            notices=notifying(
                order.settings.notifications,
                stack,
                store=store,
                permission=permission,
                tenancy=tenancy,
                tokens=tokens,
                waiting=lambda: waiting_pods(cluster),
                clock=clock,
            ),
            networks=networks,
            certificates=certificates,
        )

        def taken(records: Sequence[UsageRecord]) -> None:
            figures.taken(records)
            running.taken(records)

        if order.usage_port:
            usage = UsageProgram(
                client,
                store,
                namespace=order.namespace,
                port=order.usage_port,
                attribute=cluster.tenant_of_queue,
                taken=taken,
            )
            figures.collects(lambda: usage.collection.seen_at_s, usage.expiry)
            usage.start()
            stack.callback(usage.stop)
        recorder = ClusterRecorder(cluster, store, clock, observed=running.update)
        housekeeper = Housekeeper(
            store=store, clock=clock, kept=order.settings.journal.retention(), log_file=order.home / LOG_FILE
        )
        console = stack.enter_context(ConsoleListener(order.settings.console))
        server = self._server = _sockets(order, operations, console, stack)
        if self._ended.is_set():  # stop was called before there was a server to stop
            return
        watch = LeaseWatch(lead, server)
        for part in (keeper, KubeNetworkKeeper(client, networks), recorder, housekeeper, watch):
            part.start()
            stack.callback(part.stop)
        context = ClusterContext(
            home=str(order.home),
            namespace=order.namespace,
            started_at=time.time(),
            console=console.url,
            console_failure=console.failure,
        )
        more = {"cluster": cluster, "context": context, "queues": QueueWriter(client, state)}
        more["orders"] = DeviceOrders(client, state, cluster)
        log.info("serves the cluster", home=str(order.home), console=console.url)
        server.run(figures.counting(served(operations, handlers(), more)))
        if watch.lost:
            raise CalabashError("another server leads", reason=Reason.CONFLICT, hint="it is started again and waits")


def _watch(client: KubeClient, state: ClusterState, stack: ExitStack) -> None:
    if not client.serves(TENANT):
        raise CalabashError(
            "the API server does not know tenants",
            reason=Reason.NOT_FOUND,
            hint="install the definitions of the chart: kubectl apply --server-side -f charts/calabash/crds",
        )
    stack.callback(state.stop)
    state.start()
    missing = state.synced(SYNCED_S)
    if missing:
        raise CalabashError(
            f"the API server did not tell of {', '.join(missing)} within {SYNCED_S:g}s",
            reason=Reason.API_DOWN,
            hint="see the log: rights may be missing, or the API server is overloaded",
        )


def _sockets(order: ClusterOrder, operations: Operations, console: ConsoleListener, stack: ExitStack) -> Server:
    """Return the HTTP server with its Unix sockets: one for local programs and, with a console, one for its gateway.

    The gateway is the program that accepts HTTPS from browsers and API clients and forwards their requests.
    """
    address = Path(socket_path(order.home))
    listener = stack.enter_context(Listener(operations.fairness))
    listen_unix(address, listener, mode=0o600)
    stack.callback(address.unlink, missing_ok=True)
    listeners, token_socket = [listener], ""
    if console.listener is not None:
        second = stack.enter_context(Listener(operations.fairness))
        token_socket = str(gateway_socket(order.home))
        listen_unix(Path(token_socket), second, mode=0o600)
        stack.callback(Path(token_socket).unlink, missing_ok=True)
        listeners.append(second)
        console.serve(token_socket, credential=operations.tokens.gateway().secret)
    return Server(listeners, operations.fairness, token_socket=token_socket)


class ServerAccounts(HostAccounts):
    """The account that runs the server. The users of a cluster have no accounts on the machine of the server."""

    def uid_of(self, login: str) -> int:
        return os.geteuid() if login == user_name(os.geteuid()) else -1


def _leave(_number: int, _frame: object) -> None:
    raise SystemExit(0)
