"""The connections of a gateway: bounded by the peer or credential that has them, so that one user's many cost no other one.

Theory of operation. A peer is a local user, found by the kernel's account of the other end, or else an address. A connection
is its peer's until a request with a valid credential came on it; then it is the credential's. A connection too many of one
holder, or of all, closes the oldest idle one of that holder, or of the holder of the most; those whose credential was refused
come first. At most half of all connections are without a valid credential. Idle is a connection that waits for a request or its
body, or whose refusal is held back.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from calabash.api.gateway import GatewayLimits


class Closable(Protocol):
    """A connection as the table sees it."""

    def idle(self) -> bool:
        """Return True if it may be closed for others."""

    def refused(self) -> bool:
        """Return True if its credential was refused: it is closed before others."""

    def drop(self) -> None:
        """Close it at once."""


class GatewayConnections:
    """Used by one event loop.

    Args:
        unbounded: holders that have no bound of their own: trusted proxies.
    """

    def __init__(self, limits: GatewayLimits, *, unbounded: frozenset[str] = frozenset()) -> None:
        self._limits = limits
        self._unbounded = unbounded
        self._unproven: dict[str, OrderedDict[Closable, None]] = {}
        self._proven: dict[str, OrderedDict[Closable, None]] = {}
        self._holder: dict[Closable, tuple[dict[str, OrderedDict[Closable, None]], str]] = {}

    def enter(self, connection: Closable, peer: str) -> bool:
        """Add a new connection of a peer; return False if there is no room and none to be made."""
        return self._put(connection, self._unproven, peer)

    def prove(self, connection: Closable, credential: str) -> None:
        """Count the connection for a valid credential from now on."""
        if connection in self._holder and self._holder[connection] != (self._proven, credential):
            self.leave(connection)
            if not self._put(connection, self._proven, credential):
                connection.drop()

    def leave(self, connection: Closable) -> None:
        """Forget a connection that has ended."""
        table, holder = self._holder.pop(connection, (self._unproven, ""))
        if holder in table:
            table[holder].pop(connection, None)
            if not table[holder]:
                del table[holder]

    def _put(self, connection: Closable, table: dict[str, OrderedDict[Closable, None]], holder: str) -> bool:
        most = self._limits.connections_per_address
        own = table.get(holder, OrderedDict())
        if holder not in self._unbounded and len(own) >= most and not self._made_room(own):
            return False
        half = max(1, self._limits.connections // 2)
        full = sum(map(len, table.values())) >= half if table is self._unproven else False
        if (full or len(self._holder) >= self._limits.connections) and not self._made_room_among(table):
            return False
        table.setdefault(holder, OrderedDict())[connection] = None
        self._holder[connection] = (table, holder)
        return True

    def _made_room_among(self, table: dict[str, OrderedDict[Closable, None]]) -> bool:
        """Close an idle connection of the holder of the most; holders with none to close are passed over."""
        tables = [table] if table is self._unproven else [self._unproven, self._proven]
        holders = sorted((own for one in tables for own in one.values()), key=len, reverse=True)
        return any(self._made_room(own) for own in holders)

    def _made_room(self, own: OrderedDict[Closable, None]) -> bool:
        idle = [connection for connection in own if connection.idle()]
        if not idle:
            return False
        oldest = next((connection for connection in idle if connection.refused()), idle[0])
        self.leave(oldest)
        oldest.drop()
        return True
