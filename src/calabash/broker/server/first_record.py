"""Classify a connection by its first TLS record: a program's session, or a request to the HTTPS server.

A session begins with a TLS 1.3 ClientHello that offers exactly one pre-shared key whose identity is ``LEASE.SESSION``,
32 hexadecimal digits each (RFC 8446, 4.1.2 and 4.2.11). All other connections are passed to the HTTPS server, which
refuses those that it does not understand. No I/O; every length is checked before it is used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

HELLO_BYTES_MAX = 5 + 4096  # a ClientHello of the client library has about 500 bytes
_RECORD_HEAD = 5
_HANDSHAKE, _CLIENT_HELLO, _PRE_SHARED_KEY = 22, 1, 41
_IDENTITY = re.compile(rb"([0-9a-f]{32})\.([0-9a-f]{32})")

# A fatal alert, unknown_psk_identity: there is no such lease (any more).
NO_SUCH_LEASE = bytes((21, 3, 3, 0, 2, 2, 115))


@dataclass(frozen=True, slots=True)
class MoreNeeded:
    """Result for an incomplete record: ``size`` is the total number of bytes that are needed to classify it."""

    size: int


@dataclass(frozen=True, slots=True)
class SessionBegins:
    """Result for a program's ClientHello, which requests a session of a lease: the IDs of the lease and the session."""

    lease: str
    session: str


@dataclass(frozen=True, slots=True)
class SomethingElse:
    """Result for bytes that do not request a session: the HTTPS server handles the connection."""


_ELSE = SomethingElse()


class _CutShortError(Exception):
    """A length field exceeds the data."""


class _Reader:
    """Reads numbers and length-prefixed vectors from the beginning of bounded data."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        if len(found) != size:
            raise _CutShortError
        self._at += size
        return found

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, length_size: int) -> bytes:
        return self.take(self.number(length_size))

    def left(self) -> int:
        return len(self._data) - self._at


def classify(data: bytes) -> MoreNeeded | SessionBegins | SomethingElse:
    """Classify a connection by the bytes received so far."""
    if data[:2] != bytes((_HANDSHAKE, 3))[: len(data)]:
        return _ELSE
    size = _RECORD_HEAD + int.from_bytes(data[3:5], "big") if len(data) >= _RECORD_HEAD else _RECORD_HEAD
    if len(data) < size <= HELLO_BYTES_MAX:
        return MoreNeeded(size)
    if size > HELLO_BYTES_MAX:
        return _ELSE
    try:
        return _session(data[_RECORD_HEAD:size]) or _ELSE
    except _CutShortError:
        return _ELSE


def _session(record: bytes) -> SessionBegins | None:
    message = _Reader(record)
    if message.number(1) != _CLIENT_HELLO:
        return None
    hello = _Reader(message.vector(3))
    if message.left() or hello.number(2) != 0x0303:
        return None
    hello.take(32)
    session_id, suites, compression = hello.vector(1), hello.vector(2), hello.vector(1)
    if len(session_id) > 32 or len(suites) < 2 or len(suites) % 2 or compression != b"\0":
        return None
    extensions = _Reader(hello.vector(2))
    if hello.left():
        return None
    seen: set[int] = set()
    offered: bytes | None = None
    while extensions.left():
        kind, content = extensions.number(2), extensions.vector(2)
        if kind in seen or offered is not None:  # the pre-shared key comes last
            return None
        seen.add(kind)
        if kind == _PRE_SHARED_KEY:
            offered = content
    return None if offered is None else _named(_Reader(offered))


def _named(offered: _Reader) -> SessionBegins | None:
    """Return the session that a ClientHello requests; None unless it offers exactly one identity, ``LEASE.SESSION``."""
    identities = _Reader(offered.vector(2))
    identity = identities.vector(2)
    identities.take(4)
    binders = _Reader(offered.vector(2))
    binder = binders.vector(1)
    if identities.left() or binders.left() or offered.left() or len(binder) < 32:
        return None
    match = _IDENTITY.fullmatch(identity)
    return SessionBegins(match[1].decode(), match[2].decode()) if match else None
