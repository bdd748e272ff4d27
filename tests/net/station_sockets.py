"""TCP clients and servers of tests with ordinary sockets inside stations, and ping."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import TracebackType
from typing import Self

from tests.net.packets import ICMP, ICMP6, echo

from calabash.controllers.lab.station import Station


class Banner:
    """A TCP server that answers each connection with its text and the caller's address, such as ``web1 10.0.1.12``."""

    def __init__(self, station: Station, number: int, text: str, *, version: int = 4) -> None:
        self._listener = station.socket(_family(version), socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if version == 6:
            self._listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        self._listener.bind(("::" if version == 6 else "0.0.0.0", number))
        self._listener.listen(512)
        self._text = text
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept
        self._thread.join()
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self) -> None:
        while True:
            try:
                client, peer = self._listener.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError):
                client.settimeout(60)
                client.sendall(f"{self._text} {peer[0]}".encode())


def asked(station: Station, address: str, number: int, *, timeout_s: float = 60) -> str:
    """Return the answer of a server, or ``no: `` and the reason."""
    try:
        with station.socket(_family(6 if ":" in address else 4), socket.SOCK_STREAM) as client:
            client.settimeout(timeout_s)
            client.connect((address, number))
            return client.recv(200).decode()
    except OSError as error:
        return f"no: {type(error).__name__}"


def pings(station: Station, address: str, *, timeout_s: float = 60, payload: bytes = b"calabash") -> bool:
    """Return True if the address answers a ping within that time; a ping is sent every half second."""
    version = 6 if ":" in address else 4
    protocol, answer = (ICMP6, b"\x81") if version == 6 else (ICMP, b"\0")
    end = time.monotonic() + timeout_s
    with station.socket(_family(version), socket.SOCK_RAW, protocol) as client:
        while time.monotonic() < end:
            client.settimeout(0.5)
            try:
                client.sendto(echo(station.address(version), address, payload), (address, 0))
                while True:
                    got, peer = client.recvfrom(2000)
                    said = got if version == 6 else got[20:]
                    if said.startswith(answer) and payload in said and peer[0] == address:
                        return True
            except OSError:
                continue
    return False


def _family(version: int) -> socket.AddressFamily:
    return socket.AF_INET6 if version == 6 else socket.AF_INET
