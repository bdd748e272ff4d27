"""The process that serves the console and the API over TCP: started at the first connection, started again when it dies.

Theory of operation. The pool binds the TCP socket and never reads from it. When somebody connects, the gateway is started
and takes the socket over; while it lives the pool does not look. It is told what to do on its standard input, which stays
open: that it ends tells the gateway that the pool is gone, SIGKILL included. A gateway that dies is started at the next
connection, after a pause that doubles while it keeps dying.
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
from calabash.platform.http.child_processes import RestartPause, end

SOCKET_FILE = "gateway.sock"
OFF = "off"

log = structlog.get_logger(__name__)


class GatewayKeeper:
    """The gateway of one pool.

    Args:
        listener: what listens on TCP.
        order: what the gateway is told.
    """

    def __init__(self, listener: socket.socket, order: GatewayOrder) -> None:
        self._listener = listener
        self._order = order
        self._wake, self._woken = os.pipe()
        self._thread = threading.Thread(target=self._run, name="gateway", daemon=True)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the gateway, 0 while there is none."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else 0

    def start(self) -> None:
        """From now on whoever connects is served."""
        self._thread.start()

    def stop(self) -> None:
        """End the gateway."""
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
        """Wait for the descriptor or the time; False when the pool goes down."""
        poll = select.poll()
        poll.register(self._wake, 0)  # its other end being closed is what is waited for
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
            new_session=True,  # what is typed at the pool's terminal is not for it
        )
        assert process.stdin is not None
        self._process = process
        try:
            process.stdin.write(msgspec.json.encode(self._order) + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it has died already, which is seen
        log.info("the gateway is started", pid=process.pid)
        return process


class ConsoleDoor:
    """The TCP socket of one pool, and the gateway behind it. A socket that cannot be had is told, and the pool is up without.

    Raises CalabashError for settings that cannot be meant.
    """

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        self._keeper: GatewayKeeper | None = None
        self.listener: socket.socket | None = None
        self.url, self.failure = "", ""
        if settings.listen == OFF:
            return
        try:
            self.listener = listening_tcp(checked(settings).listen)
        except OSError as error:
            self.failure = f"the console cannot listen on {settings.listen}: {error.strerror or error}"
            log.warning(self.failure, hint="say --console HOST:PORT with another port, or --console off")
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
        """Have the gateway started at the first connection; it may connect to ``pool_socket``, and others may not."""
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
        self._keeper = GatewayKeeper(self.listener, order)
        self._keeper.start()


def checked(console: ConsoleSettings) -> ConsoleSettings:
    """The settings, if they can be. Raises CalabashError for an address without TLS that others can reach, for no
    address, and for a provider of identities that cannot be meant or whose secret others can read."""
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
    """A socket that listens there. Raises OSError."""
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
    """Where a browser finds it."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"{'https' if tls else 'http'}://{shown}:{port}"


def gateway_socket(home: Path) -> Path:
    """The socket on which the pool answers the gateway."""
    return home / SOCKET_FILE
