"""Connection to an OVSDB server: sends and receives JSON messages, with a limit for each wait."""

from __future__ import annotations

import os
import select
import socket
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from calabash.adapters.ovn.framing import BrokenStreamError, Messages
from calabash.model.errors import CalabashError

CONNECT_S = 2.0
CHUNK_BYTES = 1 << 18
PORTS = {"OVN_Northbound": 6641, "OVN_Southbound": 6642, "Open_vSwitch": 6640}

_encode = msgspec.json.Encoder().encode


class LostError(Exception):
    """Error for a lost connection; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Files for ``ssl:`` remotes: authority of the server's certificate, and the client's certificate and key."""

    ca: Path
    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Return the TLS context. Raises CalabashError if the files cannot be read."""
        try:
            context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(self.ca))
            context.check_hostname = (
                False  # OVN's certificates are checked by their authority; they do not have host names
            )
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise CalabashError(
                f"the certificates of OVN's databases cannot be used: {error}", hint=f"see {self.certificate}"
            ) from error
        return context


def checked_remotes(text: str) -> tuple[str, ...]:
    """Return the servers in a text: ``unix:PATH``, ``tcp:HOST:PORT``, ``ssl:HOST:PORT``, separated by commas.

    Raises CalabashError(BAD_REQUEST) if one is malformed or none is named.
    """
    remotes = tuple(part.strip() for part in text.split(",") if part.strip())
    for remote in remotes:
        kind, _, rest = remote.partition(":")
        if kind not in {"unix", "tcp", "ssl"} or not rest or (kind != "unix" and not _endpoint(rest)[1]):
            raise CalabashError(
                f"{remote!r} is not the address of an OVSDB server",
                hint="write it as unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT",
            )
    if not remotes:
        raise CalabashError("no OVSDB server is named", hint="write it as unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT")
    return remotes


def _endpoint(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port) if host and port.isdigit() else 0


class Wire:
    """Open connection to a server. Not safe for threads. Raises OSError if the server does not answer."""

    def __init__(self, remote: str, tls: ssl.SSLContext | None) -> None:
        kind, _, rest = remote.partition(":")
        self._socket = _connected_unix(rest) if kind == "unix" else socket.create_connection(_endpoint(rest), CONNECT_S)
        try:
            if kind != "unix":
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if kind == "ssl":
                if tls is None:
                    raise LostError(f"{remote} needs certificates, and none are configured")
                self._socket = tls.wrap_socket(self._socket)
            self._socket.setblocking(False)
        except BaseException:
            self._socket.close()
            raise
        self._messages = Messages()
        self._out = bytearray()
        self.heard_s = time.monotonic()  # when something came last

    def close(self) -> None:
        self._socket.close()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message. Raises LostError."""
        self._out += _encode(message)
        self._flush()

    def wait(self, wake: int, timeout_s: float) -> None:
        """Wait until data has arrived, waiting data can be sent, ``wake`` is readable, or ``timeout_s`` has passed.

        ``wake`` is the descriptor with which other threads wake this one; bytes that have arrived there are dropped.
        """
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._out else 0))
        poll.register(wake, select.POLLIN)
        pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()
        for descriptor, _ in poll.poll(0 if pending else max(0.0, timeout_s) * 1000):
            if descriptor == wake:
                os.read(wake, 4096)
        self._flush()

    def received(self) -> list[dict[str, Any]]:
        """Return the complete messages received. Raises LostError."""
        chunks: list[bytes] = []
        ended = ""
        while True:
            try:
                chunk = self._socket.recv(CHUNK_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            except OSError as error:
                ended = str(error)
                break
            if not chunk:
                ended = "the server closed the connection"
                break
            chunks.append(chunk)
        if not chunks:
            if ended:
                raise LostError(ended)
            return []
        self.heard_s = time.monotonic()
        try:
            return self._messages.fed(b"".join(chunks))  # the end is reported by the next call
        except BrokenStreamError as error:
            raise LostError(f"the server's answer is not JSON-RPC: {error}") from error

    def _flush(self) -> None:
        while self._out:
            try:
                sent = self._socket.send(self._out)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as error:
                raise LostError(str(error)) from error
            del self._out[:sent]


def _connected_unix(path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        made.settimeout(CONNECT_S)
        made.connect(path)
    except BaseException:
        made.close()
        raise
    return made
