"""Table of a gateway's connections, with limits for each peer and credential, so that no user can exclude the others.

Theory of operation. A peer is a local user, identified by the kernel, or else an address. A connection counts for its
peer until it carries a request with a valid credential; then it counts for the credential. A connection above the limit
of its holder or of the gateway closes the oldest idle connection of that holder, or of the holder with the most;
connections whose credential was refused are closed first. At most half of all connections are without a valid
credential. A connection is idle if it waits for a request or its body, or if its refusal is delayed.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from calabash.api.gateway import GatewayLimits


class Closable(Protocol):
    """Methods of a connection that the table uses."""

    def idle(self) -> bool:
        """Return True if the connection may be closed to make room for others."""

    def refused(self) -> bool:
        """Return True if the connection's credential was refused; such connections are closed first."""

    def drop(self) -> None:
        """Close the connection at once."""


class GatewayConnections:
    """Open connections by their holder: a peer, or a valid credential. Used by one event loop.

    Args:
        limits: limits of the gateway.
        unbounded: peers without a limit of their own, namely trusted proxies.
    """

    def __init__(self, limits: GatewayLimits, *, unbounded: frozenset[str] = frozenset()) -> None:
        self._limits = limits
        self._unbounded = unbounded
        self._unproven: dict[str, OrderedDict[Closable, None]] = {}
        self._proven: dict[str, OrderedDict[Closable, None]] = {}
        self._holder: dict[Closable, tuple[dict[str, OrderedDict[Closable, None]], str]] = {}

    def enter(self, connection: Closable, peer: str) -> bool:
        """Add a new connection of a peer; return False if a limit is reached and no idle connection can be closed."""
        return self._put(connection, self._unproven, peer)

    def prove(self, connection: Closable, credential: str) -> None:
        """Count the connection for a valid credential instead of its peer from now on.

        Closes the connection if the credential has too many connections and none of them is idle.
        """
        if connection in self._holder and self._holder[connection] != (self._proven, credential):
            self.leave(connection)
            if not self._put(connection, self._proven, credential):
                connection.drop()

    def leave(self, connection: Closable) -> None:
        """Remove a connection that has ended."""
        table, holder = self._holder.pop(connection, (self._unproven, ""))
        if holder in table:
            table[holder].pop(connection, None)
            if not table[holder]:
                del table[holder]

    def _put(self, connection: Closable, table: dict[str, OrderedDict[Closable, None]], holder: str) -> bool:
        most = self._limits.connections_per_address
        own = table.get(holder, OrderedDict())
        if holder not in self._unbounded and len(own) >= most and not self._close_idle(own):
            return False
        half = max(1, self._limits.connections // 2)
        full = sum(map(len, table.values())) >= half if table is self._unproven else False
        if (full or len(self._holder) >= self._limits.connections) and not self._close_idle_among(table):
            return False
        table.setdefault(holder, OrderedDict())[connection] = None
        self._holder[connection] = (table, holder)
        return True

    def _close_idle_among(self, table: dict[str, OrderedDict[Closable, None]]) -> bool:
        """Close one idle connection; return False if there is none.

        The holder with the most connections that has an idle one loses it. For a new connection without a valid
        credential (``table`` is the unproven one), only connections of that table are closed.
        """
        tables = [table] if table is self._unproven else [self._unproven, self._proven]
        holders = sorted((own for one in tables for own in one.values()), key=len, reverse=True)
        return any(self._close_idle(own) for own in holders)

    def _close_idle(self, own: OrderedDict[Closable, None]) -> bool:
        idle = [connection for connection in own if connection.idle()]
        if not idle:
            return False
        oldest = next((connection for connection in idle if connection.refused()), idle[0])
        self.leave(oldest)
        oldest.drop()
        return True
