"""The server's process: takes its directory, opens its port, and serves until a signal or its owner says to end.

uvicorn's HTTP/1.1 runs on connections that the door passes on, over TLS, and on the owner's Unix socket, without. What runs
on the cards is not touched by the end of this process.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import structlog
import uvicorn
from uvicorn.server import ServerState

from calabash.adapters.host.files import write_durably
from calabash.adapters.host.log_stream import log_stream
from calabash.adapters.host.tcp_peers import local_peer
from calabash.adapters.pool.streams import PoolStreams
from calabash.broker.addresses import ServerAddress
from calabash.broker.server.audit import AuditLog
from calabash.broker.server.authentication import Gatekeeper
from calabash.broker.server.broker import KEEP_GRACES, Broker, ServerSettings
from calabash.broker.server.directory import (
    ADDRESS_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    SOCKET_FILE,
    certificate_of,
    own_directory,
)
from calabash.broker.server.handlers import OWNER_KEY, remote_application
from calabash.broker.server.journal import LeaseJournal
from calabash.broker.server.lease_allocations import Holdings
from calabash.broker.server.listener import listening
from calabash.broker.server.metrics import Tallies
from calabash.broker.server.network_ports import TenantDoor, TenantDoors
from calabash.broker.server.port import FrontDoor
from calabash.model.errors import CalabashError, Reason, cause
from calabash.transport.connections import Activity, Connection, Connections
from calabash.transport.uvicorn_http11 import StrictProtocol

HANDSHAKE_S = 5.0
REQUEST_S = 10.0
CONNECTIONS_MAX, PER_PEER_MAX = 1024, 256  # of TLS, from the handshake on
OWNER_CONNECTIONS_MAX = 64
SWEEP_S = 0.5

log = structlog.get_logger(__name__)


class PatientProtocol(StrictProtocol):
    """uvicorn's HTTP/1.1 that does not wait for a request for ever."""

    _patience: asyncio.TimerHandle | None = None
    _count: tuple[Connections, Connection] | None = None

    def count_in(self, connections: Connections, connection: Connection) -> None:
        """Tell the table of connections what this one does, from now on."""
        self._count = connections, connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        if self._count is not None:
            self._count[0].ended(self._count[1])
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self._count is not None and self.cycle is not None and not self.cycle.response_complete:
            connections, connection = self._count
            connections.set_activity(connection, Activity.ASKING if self.cycle.more_body else Activity.BUSY)

    def on_response_complete(self) -> None:
        if self._count is not None:
            self._count[0].set_activity(self._count[1], Activity.IDLE)
        super().on_response_complete()
        self._wait_for_request()

    def _wait_for_request(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._patience = self.loop.call_later(REQUEST_S, self._give_up)

    def _give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:  # not even the head of a request, or of another
            self.transport.abort()


class RemoteServer:
    """Everything of one server but its pool."""

    def __init__(self, directory: Path, broker: Broker, gatekeeper: Gatekeeper, context: ssl.SSLContext) -> None:
        self._directory = directory
        self._broker = broker
        self._context = context
        self._stopping = asyncio.Event()
        self._over = False  # its owner has said so; else it may be started again
        application = remote_application(broker, gatekeeper, stop=self._end)
        self._config = uvicorn.Config(
            application,
            http=PatientProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=16 * 1024,
            limit_concurrency=CONNECTIONS_MAX + OWNER_CONNECTIONS_MAX,
            timeout_keep_alive=5,
        )
        self._config.load()
        self._connections = Connections(most=CONNECTIONS_MAX, per_peer=PER_PEER_MAX)
        self._state = ServerState()

    async def serve(self, listener: socket.socket | None, doors: TenantDoors) -> None:
        """Until it is told to end, at a socket of this machine's network, if any, and at ports of tenant networks."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        await self._broker.begin()
        await doors.open(self.open_door)
        addresses = [str(ServerAddress.of(listener))] if listener is not None else []
        addresses += doors.addresses()
        write_durably(self._directory / ADDRESS_FILE, "".join(f"{line}\n" for line in addresses).encode())
        path = self._directory / SOCKET_FILE
        path.unlink(missing_ok=True)  # we hold the lock: its owner is dead
        own = await loop.create_unix_server(lambda: self._protocol(owner=True), str(path))
        path.chmod(0o600)
        close = self.open_door(listener) if listener is not None else None
        sweeping = loop.create_task(self._sweeping(doors))
        log.info("server is up", address=", ".join(addresses), name=self._broker.settings.name)
        await self._stopping.wait()
        sweeping.cancel()
        if close is not None:
            close()
        own.close()
        path.unlink(missing_ok=True)
        await asyncio.gather(sweeping, return_exceptions=True)
        await doors.close(for_good=self._over)
        await self._let_finish()
        await self._broker.holdings.settle()
        log.info("server is down")

    def open_door(self, listener: socket.socket) -> Callable[[], None]:
        """Serve a listening socket until what is returned is called, which closes it."""
        loop = asyncio.get_running_loop()

        async def pass_on(connection: socket.socket) -> None:
            counted = self._counted(connection)
            if counted is None:
                connection.close()
                return

            def protocol() -> asyncio.Protocol:
                made = self._protocol(owner=False)
                made.count_in(self._connections, counted)
                return made

            try:
                await loop.connect_accepted_socket(
                    protocol, connection, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_S
                )
            except (OSError, TimeoutError):
                self._connections.ended(counted)
                connection.close()  # it speaks no TLS, or no more

        tallies = self._broker.holdings.tallies

        def count(kind: str) -> None:
            tallies.count("connections_total", kind)
            if kind == "session":
                tallies.count("sessions_total")

        door = FrontDoor(listener, entrance=self._broker.holdings.entrance, pass_on=pass_on, count=count)
        task = loop.create_task(door.serve())
        task.add_done_callback(lambda _: listener.close())

        def close() -> None:
            task.cancel()

        return close

    def _counted(self, connection: socket.socket) -> Connection | None:
        """Count a connection for its peer; None if there are too many that are being answered, or it is gone."""

        def close() -> None:
            with suppress(OSError):  # it is closed
                connection.shutdown(socket.SHUT_RDWR)

        try:
            peer = local_peer(connection, str(connection.getpeername()[0]))
        except OSError:
            return None
        return self._connections.open(peer, close)

    def _end(self) -> None:
        self._over = True
        self._stopping.set()

    def _protocol(self, *, owner: bool) -> PatientProtocol:
        made: Any = self._config.http_protocol_class
        found: PatientProtocol = made(config=self._config, server_state=self._state, app_state={OWNER_KEY: owner})
        return found

    async def _sweeping(self, doors: TenantDoors) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await doors.keep()
                await self._broker.sweep()
            except CalabashError as error:
                log.warning("a look at the leases failed", why=error.message)

    async def _let_finish(self) -> None:
        """Answers that are being written are, those that wait are not waited for."""
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            _, left = await asyncio.wait(self._state.tasks, timeout=2)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)


def run_server(
    directory: Path,
    settings: ServerSettings,
    pool: Path,
    *,
    address: ServerAddress | None,
    ports: Sequence[TenantDoor] = (),
) -> None:
    """Serve ``pool``, a socket, at an address of this machine, if any, and at ports of tenant networks. Raises CalabashError
    when it cannot start."""
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
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # every connection is a descriptor
    with ExitStack() as stack:
        stack.enter_context(own_directory(directory))
        context = _tls(directory, settings.name)
        listener = stack.enter_context(listening(address)) if address is not None else None
        gatekeeper = Gatekeeper(directory)
        streams, keep_s = PoolStreams(str(pool)), KEEP_GRACES * settings.grace_s
        holder = f"server {settings.name} ({directory})"

        async def main() -> None:
            holdings = Holdings(
                pool=streams,
                gatekeeper=gatekeeper,
                journal=LeaseJournal(directory),
                audit=AuditLog(directory),
                tallies=Tallies(),
                keep_s=keep_s,
            )
            server = RemoteServer(directory, Broker(settings, holdings), gatekeeper, context)
            await server.serve(listener, TenantDoors(ports, pool=streams, holder=holder, keep_s=keep_s))

        asyncio.run(main())


def _tls(directory: Path, name: str) -> ssl.SSLContext:
    certificate_of(directory, name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(directory / CERTIFICATE_FILE, directory / KEY_FILE)
    except (ssl.SSLError, OSError) as error:
        raise CalabashError(
            f"the certificate in {directory} cannot be used: {cause(error)}",
            reason=Reason.BAD_FILE,
            hint=f"put {CERTIFICATE_FILE} and {KEY_FILE} back; a new certificate makes all tokens useless",
        ) from None
    return context
