"""Supervisor of the gateway, the process that serves the console and the API over TCP.

Theory of operation. The pool binds the TCP socket and never reads from it. At the first connection it starts the gateway, which
inherits the socket; while the gateway runs, the pool does not poll the socket. The gateway reads its order (the address of the
pool, its credential and the settings) from standard input. The pipe stays open afterwards: when it is closed, the gateway knows
that the pool has ended, even by SIGKILL. A gateway that dies is restarted at the next connection, after a pause that doubles
while it keeps dying.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import threading
from pathlib import Path
from typing import Self

import msgspec
import structlog

from calabash.adapters.host.children import AUTHORITIES, start_module
from calabash.adapters.host.files import private_text
from calabash.api.gateway import ConsoleSettings, GatewayOrder, checked_listen, checked_oidc
from calabash.model.errors import CalabashError, Reason
from calabash.model.extras import is_installed
from calabash.platform.http.child_processes import RestartPause, end

SOCKET_FILE = "gateway.sock"
OFF = "off"

log = structlog.get_logger(__name__)


class GatewaySupervisor:
    """Thread that starts and restarts the gateway of one pool.

    Args:
        listener: listening TCP socket; the gateway inherits it.
        order: order that is written to the gateway's standard input.
    """

    def __init__(self, listener: socket.socket, order: GatewayOrder) -> None:
        self._listener = listener
        self._order = order
        self._wake, self._woken = os.pipe()
        self._thread = threading.Thread(target=self._run, name="gateway", daemon=True)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Return the process ID of the gateway; 0 if it does not run."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else 0

    def start(self) -> None:
        """Start the thread; the gateway is started at the first connection."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and the gateway."""
        os.close(self._woken)
        self._thread.join()
        os.close(self._wake)

    def _run(self) -> None:
        pause = RestartPause()
        while self._until(self._listener.fileno()):
            pause.begun()
            process = self._started()
            pidfd = os.pidfd_open(process.pid)
            try:
                died = self._until(pidfd)
            finally:
                os.close(pidfd)
            if not died:
                end(process)
                return
            code = process.wait()
            if process.stdin:
                process.stdin.close()
            pause_s = pause.after_death()
            log.warning("the gateway ended and will be started again", code=code, pause_s=pause_s)
            if not self._until(None, within_s=pause_s):
                return

    def _until(self, descriptor: int | None, *, within_s: float | None = None) -> bool:
        """Wait until the descriptor is readable or the time is over; return False if the supervisor is to stop.

        Args:
            descriptor: None: wait for the time only.
            within_s: seconds; None: no limit.
        """
        poll = select.poll()
        poll.register(self._wake, 0)  # no events: poll reports when its other end is closed
        if descriptor is not None:
            poll.register(descriptor, select.POLLIN)
        ready = poll.poll(None if within_s is None else within_s * 1000)
        return all(found != self._wake for found, _ in ready)

    def _started(self) -> subprocess.Popen[bytes]:
        process = start_module(
            "calabash.gateway",
            inherit=AUTHORITIES,
            stdin=subprocess.PIPE,
            pass_fds=(self._listener.fileno(),),
            new_session=True,  # no terminal signals: Ctrl-C ends the pool only
        )
        assert process.stdin is not None
        self._process = process
        try:
            process.stdin.write(msgspec.json.encode(self._order) + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; the caller waits on its pidfd
        log.info("the gateway is started", pid=process.pid)
        return process


class ConsoleListener:
    """TCP socket on which a pool serves the console, and the supervisor of its gateway.

    If the address cannot be bound, ``failure`` is set to the error and the pool runs without a console. If the console is off,
    ``listener`` is None and ``url`` is "". Raises CalabashError for invalid settings.
    """

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        self._keeper: GatewaySupervisor | None = None
        self.listener: socket.socket | None = None
        self.url, self.failure = "", ""
        if settings.listen == OFF:
            return
        if not is_installed("console"):
            self.failure = "the console is not installed; pip install 'calabash[console]'"
            log.warning("the console is not served", reason=self.failure)
            return
        try:
            self.listener = listening_tcp(checked(settings).listen)
        except OSError as error:
            self.failure = (
                f"the console cannot listen on {settings.listen}: {error.strerror or error}; "
                "give another port with --console HOST:PORT, or off"
            )
            log.warning("the console is not served", reason=self.failure)
            return
        self.url = url_of(self.listener, tls=bool(settings.certificate))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._keeper is not None:
            self._keeper.stop()
        if self.listener is not None:
            self.listener.close()

    def serve(self, pool_socket: str, *, credential: str) -> None:
        """Start the supervisor of the gateway, and give only the gateway's user access to ``pool_socket``.

        Args:
            credential: secret of the gateway's token.
        """
        assert self.listener is not None
        user = self._settings.user if os.geteuid() == 0 else 0
        if user:
            os.chown(pool_socket, user, user)
        order = GatewayOrder(
            pool=pool_socket,
            credential=credential,
            listener=self.listener.fileno(),
            user=user,
            console=self._settings,
        )
        self._keeper = GatewaySupervisor(self.listener, order)
        self._keeper.start()


def checked(console: ConsoleSettings) -> ConsoleSettings:
    """Return the settings after validation.

    Raises CalabashError for an invalid address, for one that other machines reach without TLS, for invalid settings of an
    identity provider, and for a secret file that other users can read.
    """
    host, _ = checked_listen(console.listen)
    if bool(console.key) and not console.certificate:
        raise CalabashError("[console] has a key and no certificate", reason=Reason.BAD_FILE, hint="name both")
    if checked_oidc(console.oidc).client_secret_file:
        private_text(console.oidc.client_secret_file)
    if not _loopback(host) and not console.certificate and not console.insecure:
        raise CalabashError(
            f"the console at {console.listen} would be reached from other machines without TLS",
            hint="name `certificate` and `key` in [console] of pool.toml, or say --insecure behind a proxy that has TLS",
        )
    return console


def _loopback(host: str) -> bool:
    return host.strip("[]") in {"localhost", "::1"} or host.startswith("127.")


def listening_tcp(listen: str) -> socket.socket:
    """Return a socket that listens on HOST:PORT. Raises OSError."""
    host, _, port = listen.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(found[0], socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(found[4])
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


def url_of(listener: socket.socket, *, tls: bool) -> str:
    """Return the URL of the console for a browser on this machine."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"{'https' if tls else 'http'}://{shown}:{port}"


def gateway_socket(home: Path) -> Path:
    """Return the path of the Unix socket on which the pool serves the gateway."""
    return home / SOCKET_FILE
