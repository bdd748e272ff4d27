"""Limit the open connections of a server, in total and per peer, and choose which one is closed to make room for a new one.

Theory of operation. A server that any pod or local process can reach must not be filled by one of them. So there is a
limit for all connections and one for each peer address. A new connection beyond a limit is accepted, and an open one is
closed instead. At the limit of a peer, one of the peer's own connections is closed; at the limit of all connections,
one of the peer that has most connections. Connections of clients that are not authenticated are closed first. Among
these, and later among the others, a connection whose credential was refused is closed before an idle one, an idle one
before any other, and of several the one whose activity changed first. A connection whose request is being answered is
never closed; if there are only such connections, the new one is refused. The bytes of request bodies in memory have a
limit of their own, which is enforced in the same way.

A server may count a connection for the valid credential of its requests instead of its peer (``prove``). Then no number
of connections without a credential can exclude clients that have one: such connections have a limit of their own, and a
new connection closes only connections without a credential, or of the same credential.

This module only counts, and is used by one thread; ``calabash.transport.listening`` accepts the connections.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from socket import socket

Peer = Callable[[socket, str], str]
"""Returns the peer for which a connection counts, from its socket and address."""

_IPV6_PREFIX = 64  # a machine has all addresses of one such network


class Activity(StrEnum):
    """Activity of a connection.

    OPENING: no byte of its first request has arrived. IDLE: it is between two requests. ASKING: a request is being
    received. BUSY: its request is complete and is being answered. REFUSED: the reply to a refused credential is
    delayed.
    """

    OPENING = "opening"
    IDLE = "idle"
    ASKING = "asking"
    BUSY = "busy"
    REFUSED = "refused"


@dataclass(slots=True, eq=False)
class Connection:
    """One connection.

    Args:
        peer: address of the client, or for IPv6 the /64 network of the address.
        close: called when the connection is closed to make room for another one.
        since: sequence number of the last change of ``activity``; smaller is earlier.
        proven: True if the client is authenticated, by its certificate or a credential.
        credential: credential for which the connection counts instead of its peer; "" for none.
        held_bytes: bytes of its request that are in memory.
    """

    peer: str
    close: Callable[[], object]
    since: int
    activity: Activity = Activity.OPENING
    proven: bool = False
    credential: str = ""
    held_bytes: int = 0


class Connections:
    """Table of the open connections of a server, with their limits. For one thread.

    Args:
        most: largest number of connections.
        per_peer: largest number of connections of one peer, and of one credential.
        held_bytes_max: largest number of bytes of requests in memory, of all connections together.
        without_credential: largest number of connections that count for a peer; None: ``most``.
        unbounded: peers without a limit of their own, such as trusted proxies.
        peer: returns the peer of an accepted connection; see ``Peer``.
    """

    def __init__(
        self,
        *,
        most: int,
        per_peer: int,
        held_bytes_max: int = 0,
        without_credential: int | None = None,
        unbounded: frozenset[str] = frozenset(),
        peer: Peer = lambda _, address: address,
    ) -> None:
        self._most = most
        self._per_peer = per_peer
        self._held_bytes_max = held_bytes_max
        self._without_credential = most if without_credential is None else without_credential
        self._unbounded = unbounded
        self._peer = peer
        self._by_peer: dict[str, dict[Connection, None]] = {}
        self._by_credential: dict[str, dict[Connection, None]] = {}
        self._count = 0
        self._held_bytes = 0
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return self._count

    def accept(self, accepted: socket, address: str, close: Callable[[], object]) -> Connection | None:
        """Add a new connection for the peer at the other end of a socket; see ``open``."""
        return self.open(self._peer(accepted, address), close)

    def open(self, address: str, close: Callable[[], object]) -> Connection | None:
        """Add a new connection, and close another one if there are too many; return None if the new one is refused.

        Args:
            address: address of the client.
            close: closes the new connection; called if it is later chosen to be closed for another one.
        """
        peer = peer_of(address)
        own = self._by_peer.get(peer, {})
        if peer not in self._unbounded and len(own) >= self._per_peer:
            if not self._close_one([own]):
                return None
        elif self._is_full() and not self.shed():
            return None
        found = Connection(peer, close, next(self._numbers))
        self._by_peer.setdefault(peer, {})[found] = None
        self._count += 1
        return found

    def shed(self) -> bool:
        """Close a connection, if possible of the peer that has most; return False if all are answering requests."""
        return self._close_one(sorted(self._by_peer.values(), key=len, reverse=True))

    def prove(self, connection: Connection, credential: str) -> None:
        """Count the connection for a valid credential from now on.

        If the credential has too many connections already, one of them is closed. If all of them have a request that is
        being answered, ``connection`` is closed instead.
        """
        if not self._is_open(connection) or connection.credential == credential:
            return
        own = self._by_credential.get(credential, {})
        if len(own) >= self._per_peer and not self._close_one([own]):
            self.ended(connection)
            connection.close()
            return
        self._remove(connection)
        connection.proven, connection.credential = True, credential
        self._by_credential.setdefault(credential, {})[connection] = None

    def set_close(self, connection: Connection, close: Callable[[], object]) -> None:
        """Set the function that is called to close the connection for another one."""
        connection.close = close

    def set_activity(self, connection: Connection, activity: Activity) -> None:
        connection.activity = activity
        connection.since = next(self._numbers)

    def take(self, connection: Connection, count: int) -> bool:
        """Reserve memory for more bytes of a request; return False if the request is to be refused.

        If too many bytes are held, connections are closed whose request is not complete, first those of the peer that
        holds most.
        """
        if not self._is_open(connection):
            return False  # it was closed for another, and its last bytes are read now
        while self._held_bytes + count > self._held_bytes_max:
            victim = self._largest(connection.peer, count)
            if victim is None or victim is connection:
                return False
            self.ended(victim)
            victim.close()
        connection.held_bytes += count
        self._held_bytes += count
        return True

    def release(self, connection: Connection) -> None:
        """Release the memory that ``take`` has reserved for a connection."""
        self._held_bytes -= connection.held_bytes
        connection.held_bytes = 0

    def ended(self, connection: Connection) -> None:
        """Remove a connection; does nothing if it has been removed."""
        if self._is_open(connection):
            self._remove(connection)
            self._count -= 1
            self.release(connection)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _holders(self, connection: Connection) -> tuple[dict[str, dict[Connection, None]], str]:
        """Return the table in which the connection is counted, and its peer or credential as the key in that table."""
        if connection.credential:
            return self._by_credential, connection.credential
        return self._by_peer, connection.peer

    def _is_open(self, connection: Connection) -> bool:
        table, holder = self._holders(connection)
        return connection in table.get(holder, {})

    def _remove(self, connection: Connection) -> None:
        table, holder = self._holders(connection)
        del table[holder][connection]
        if not table[holder]:
            del table[holder]

    def _is_full(self) -> bool:
        return self._count >= self._most or sum(map(len, self._by_peer.values())) >= self._without_credential

    def _close_one(self, holders: Iterable[Collection[Connection]]) -> bool:
        for connections in holders:
            victim = min((c for c in connections if c.activity is not Activity.BUSY), key=_order, default=None)
            if victim is not None:
                self.ended(victim)
                victim.close()
                return True
        return False

    def _largest(self, taker: str, count: int) -> Connection | None:
        """Return the connection to close so that ``taker`` may hold ``count`` more bytes; None if there is none.

        Only connections of peers that hold at least as many bytes as the peer ``taker`` would then hold are considered.
        """
        held = {peer: sum(c.held_bytes for c in there) for peer, there in self._by_peer.items()}
        held[taker] = held.get(taker, 0) + count
        for peer in sorted(held, key=lambda one: (-held[one], one != taker)):
            if held[peer] < held[taker]:
                return None
            asking = [c for c in self._by_peer[peer] if c.held_bytes and c.activity is not Activity.BUSY]
            if asking:
                return min(asking, key=_order)
        return None


_CLOSED_FIRST = {Activity.REFUSED: 0, Activity.IDLE: 1}


def _order(connection: Connection) -> tuple[bool, int, int]:
    return (connection.proven, _CLOSED_FIRST.get(connection.activity, 2), connection.since)


def peer_of(address: str) -> str:
    """Return the peer for which a connection from an address counts.

    It is the address itself for IPv4. For IPv6 it is the /64 network of the address, because one machine can use all
    addresses of its network.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 6 and found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    if found.version == 6 and not found.is_loopback:
        return str(ipaddress.ip_network((found, _IPV6_PREFIX), strict=False))
    return str(found)
