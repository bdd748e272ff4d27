"""The open connections of a server: how many there may be, of whom, and which one is closed for another.

Theory of operation. A server that any pod or local process can reach must not be filled by one of them. So there is a limit
for all connections and one for each peer address, and a new connection is never refused while another one waits: at a peer's
limit one of its own connections is closed, at the limit of all one of the peer that has most. Closed first are connections
whose client has not proven who it is, among those the ones that are idle, and among those the ones that have been so for
longest. A connection whose request is being answered is never closed for another. The bytes of requests that are held in
memory have a limit of their own, and are bounded in the same way.

Pure bookkeeping for one thread; ``listening`` accepts connections by it.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

_IPV6_PREFIX = 64  # a machine has all addresses of one such network


class Activity(StrEnum):
    """Activity of a connection.

    OPENING: its handshake or first byte has not come. IDLE: between two requests. ASKING: its request has begun. BUSY: its
    request is complete and is being answered.
    """

    OPENING = "opening"
    IDLE = "idle"
    ASKING = "asking"
    BUSY = "busy"


@dataclass(slots=True, eq=False)
class Connection:
    """One connection.

    Args:
        peer: the address, or the network of it.
        close: called when it is closed for another.
        since: orders connections by when their activity began.
        proven: the client has proven who it is.
        held_bytes: of its request, in memory.
    """

    peer: str
    close: Callable[[], object]
    since: int
    activity: Activity = Activity.OPENING
    proven: bool = False
    held_bytes: int = 0


class Connections:
    """Table of the open connections of a server, with their limits. For one thread.

    Args:
        most: largest number of connections.
        per_peer: largest number of connections of one peer.
        held_bytes_max: largest number of bytes of requests in memory.
    """

    def __init__(self, *, most: int, per_peer: int, held_bytes_max: int = 0) -> None:
        self._most = most
        self._per_peer = per_peer
        self._held_bytes_max = held_bytes_max
        self._by_peer: dict[str, dict[Connection, None]] = {}
        self._count = 0
        self._held_bytes = 0
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return self._count

    @property
    def held_bytes(self) -> int:
        """Bytes of requests that are held in memory."""
        return self._held_bytes

    def open(self, address: str, close: Callable[[], object]) -> Connection | None:
        """Add a connection, closing another one if there are too many; return None if it is refused."""
        peer = peer_of(address)
        if len(self._by_peer.get(peer, ())) >= self._per_peer:
            if not self._close_one([peer]):
                return None
        elif self._count >= self._most and not self.shed():
            return None
        found = Connection(peer, close, next(self._numbers))
        self._by_peer.setdefault(peer, {})[found] = None
        self._count += 1
        return found

    def shed(self) -> bool:
        """Close a connection of the peer that has most; return False if every connection is being answered."""
        return self._close_one(sorted(self._by_peer, key=lambda peer: -len(self._by_peer[peer])))

    def set_activity(self, connection: Connection, activity: Activity) -> None:
        connection.activity = activity
        connection.since = next(self._numbers)

    def take(self, connection: Connection, count: int) -> bool:
        """Reserve memory for more bytes of a request; return False if the request is to be refused.

        If there are too many bytes, connections whose request is not complete are closed, of the peer that holds most.
        """
        if connection not in self._by_peer.get(connection.peer, ()):
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
        """Release the memory reserved for a connection."""
        self._held_bytes -= connection.held_bytes
        connection.held_bytes = 0

    def ended(self, connection: Connection) -> None:
        """Remove a connection; does nothing if it has been removed."""
        of_peer = self._by_peer.get(connection.peer, {})
        if connection in of_peer:
            del of_peer[connection]
            self._count -= 1
            self.release(connection)
            if not of_peer:
                del self._by_peer[connection.peer]

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _close_one(self, peers: Iterable[str]) -> bool:
        for peer in peers:
            victim = min((c for c in self._by_peer[peer] if c.activity is not Activity.BUSY), key=_order, default=None)
            if victim is not None:
                self.ended(victim)
                victim.close()
                return True
        return False

    def _largest(self, taker: str, count: int) -> Connection | None:
        """Return the connection to close so that ``taker`` may hold ``count`` more bytes; None if there is none.

        A peer that holds fewer bytes than ``taker`` would hold then does not lose a connection.
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


def _order(connection: Connection) -> tuple[bool, bool, int]:
    return (connection.proven, connection.activity is not Activity.IDLE, connection.since)


def peer_of(address: str) -> str:
    """Return the peer that has an address: IPv4 addresses by themselves, IPv6 addresses by their network."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 6 and found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    if found.version == 6 and not found.is_loopback:
        return str(ipaddress.ip_network((found, _IPV6_PREFIX), strict=False))
    return str(found)
