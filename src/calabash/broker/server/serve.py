"""Server process: lock its directory, listen, and serve until a signal or its owner stops it.

uvicorn serves HTTP/1.1 over TLS on the connections that the dispatcher (:mod:`calabash.broker.server.port`) passes to
it, and without TLS on the owner's Unix socket. When this process ends, programs that use the devices continue, because
the worker processes that serve them belong to the pool.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import structlog

from calabash.adapters.gpu.library import tls_library
from calabash.adapters.host.files import write_durably
from calabash.adapters.host.log_stream import log_stream
from calabash.adapters.host.tcp_peers import local_peer
from calabash.adapters.pool.streams import PoolStreams
from calabash.broker.addresses import ServerAddress
from calabash.broker.server.audit import AuditLog
from calabash.broker.server.authentication import TokenVerifier
from calabash.broker.server.broker import KEEP_GRACES, Broker, ServerSettings
from calabash.broker.server.directory import (
    ADDRESS_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    SOCKET_FILE,
    certificate_of,
    locked_directory,
)
from calabash.broker.server.handlers import OWNER_KEY, remote_application
from calabash.broker.server.journal import LeaseJournal
from calabash.broker.server.lease_allocations import LeaseAllocations
from calabash.broker.server.listener import listening
from calabash.broker.server.metrics import LeaseCounters
from calabash.broker.server.network_ports import TenantListener, TenantListeners
from calabash.broker.server.port import PortDispatcher
from calabash.model.errors import CalabashError, Reason, cause
from calabash.transport.connections import Connections
from calabash.transport.listening import listen_unix
from calabash.transport.uvicorn_server import HttpServer, ServerOptions

HANDSHAKE_S = 5.0
REQUEST_S = 10.0
CONNECTIONS_MAX, PER_PEER_MAX = 1024, 256  # of the HTTPS server, from the TLS handshake on
OWNER_CONNECTIONS_MAX = 64
SWEEP_S = 0.5

log = structlog.get_logger(__name__)


class LeaseServices:
    """The workers of leases, and the HTTPS server for all other connections; see ``port.PortServices``."""

    def __init__(self, leases: LeaseAllocations, http: HttpServer) -> None:
        self._leases = leases
        self._http = http

    def session_target(self, lease: str, session: str, peer: str) -> tuple[str, str] | None:
        return self._leases.session_target(lease, session, peer)

    async def pass_on(self, connection: socket.socket) -> None:
        await self._http.serve_connection(connection)

    def count(self, kind: str) -> None:
        self._leases.counters.count("connections_total", kind)
        if kind == "session":
            self._leases.counters.count("sessions_total")


class RemoteServer:
    """One server: its HTTP application, its listeners, and the task that ends leases which are over.

    Args:
        directory: state directory of the server.
        broker: grants and ends leases.
        verifier: verifies the tokens of requests.
        context: TLS context with the server's certificate.
    """

    def __init__(self, directory: Path, broker: Broker, verifier: TokenVerifier, context: ssl.SSLContext) -> None:
        self._directory = directory
        self._broker = broker
        self._stopping = asyncio.Event()
        self._over = False  # stopped by its owner, not by a signal
        application = remote_application(broker, verifier, stop=self._end)
        self._http = HttpServer(
            application,
            ServerOptions(
                connections=Connections(most=CONNECTIONS_MAX, per_peer=PER_PEER_MAX, peer=local_peer),
                tls=context,
                handshake_s=HANDSHAKE_S,
                request_s=REQUEST_S,
                requests_max=CONNECTIONS_MAX + OWNER_CONNECTIONS_MAX,
            ),
        )

    async def serve(self, listener: socket.socket | None, tenant_listeners: TenantListeners) -> None:
        """Serve until stopped.

        Args:
            listener: listening socket in this machine's own network, or None.
            tenant_listeners: listeners at ports of tenant networks.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        await self._broker.begin()
        await tenant_listeners.open(self.serve_listener)
        addresses = [str(ServerAddress.from_socket(listener))] if listener is not None else []
        addresses += tenant_listeners.addresses()
        write_durably(self._directory / ADDRESS_FILE, "".join(f"{line}\n" for line in addresses).encode())
        path = self._directory / SOCKET_FILE
        owners = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listen_unix(path, owners, mode=0o600)
        own = await loop.create_unix_server(lambda: self._http.uncounted(state={OWNER_KEY: True}), sock=owners)
        close = self.serve_listener(listener) if listener is not None else None
        sweeping = loop.create_task(self._sweeping(tenant_listeners))
        log.info("server is up", address=", ".join(addresses), name=self._broker.settings.name)
        await self._stopping.wait()
        sweeping.cancel()
        if close is not None:
            close()
        own.close()
        path.unlink(missing_ok=True)
        await asyncio.gather(sweeping, return_exceptions=True)
        await tenant_listeners.close(for_good=self._over)
        await self._let_finish()
        await self._broker.leases.release_remaining()
        log.info("server is down")

    def serve_listener(self, listener: socket.socket) -> Callable[[], None]:
        """Serve a listening socket; return a function that stops serving and closes it."""
        loop = asyncio.get_running_loop()
        dispatcher = PortDispatcher(listener, LeaseServices(self._broker.leases, self._http))
        task = loop.create_task(dispatcher.serve())

        def close() -> None:
            task.cancel()

        return close

    def _end(self) -> None:
        self._over = True
        self._stopping.set()

    async def _sweeping(self, tenant_listeners: TenantListeners) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await tenant_listeners.renew()
                await self._broker.sweep()
            except CalabashError as error:
                log.warning("sweep of the leases failed", why=error.message)

    async def _let_finish(self) -> None:
        """Finish replies that are being written, for at most two seconds, and cancel requests that wait."""
        for connection in list(self._http.server_state.connections):
            connection.shutdown()
        if self._http.server_state.tasks:
            _, left = await asyncio.wait(self._http.server_state.tasks, timeout=2)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)


def run_server(
    directory: Path,
    settings: ServerSettings,
    pool: Path,
    *,
    address: ServerAddress | None,
    ports: Sequence[TenantListener] = (),
) -> None:
    """Run a server until it is stopped.

    Args:
        directory: state directory of the server.
        settings: name and lease settings.
        pool: Unix socket of the pool.
        address: address to listen at in the network of this machine; None to listen at ``ports`` only.
        ports: ports of tenant networks to listen at.

    Raises:
        CalabashError: if the server cannot start.
    """
    structlog.configure(
        processors=[
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False),
        ],
        logger_factory=structlog.PrintLoggerFactory(log_stream()),
    )
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each connection takes a descriptor
    require_tls()
    with ExitStack() as stack:
        stack.enter_context(locked_directory(directory))
        context = _tls(directory, settings.name)
        listener = stack.enter_context(listening(address)) if address is not None else None
        verifier = TokenVerifier(directory)
        streams, keep_s = PoolStreams(str(pool)), KEEP_GRACES * settings.grace_s
        holder = f"server {settings.name} ({directory})"

        async def main() -> None:
            leases = LeaseAllocations(
                pool=streams,
                verifier=verifier,
                journal=LeaseJournal(directory),
                audit=AuditLog(directory),
                counters=LeaseCounters(),
                keep_s=keep_s,
            )
            server = RemoteServer(directory, Broker(settings, leases), verifier, context)
            await server.serve(listener, TenantListeners(ports, pool=streams, holder=holder, keep_s=keep_s))

        asyncio.run(main())


def require_tls() -> None:
    """Raise CalabashError(UNSUPPORTED) if this build has no TLS, without which no program could start a session."""
    path = tls_library()
    if not path.is_file():
        raise CalabashError(
            f"this build of Calabash has no TLS, so devices cannot be offered to other machines: {path} does not exist",
            reason=Reason.UNSUPPORTED,
            hint="install libssl-dev, then make native; or install a wheel that has TLS",
        )


def _tls(directory: Path, name: str) -> ssl.SSLContext:
    certificate_of(directory, name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(directory / CERTIFICATE_FILE, directory / KEY_FILE)
    except (ssl.SSLError, OSError) as error:
        raise CalabashError(
            f"cannot load the certificate in {directory}: {cause(error)}",
            reason=Reason.BAD_FILE,
            hint=f"restore {CERTIFICATE_FILE} and {KEY_FILE}; a new certificate invalidates all tokens",
        ) from None
    return context
