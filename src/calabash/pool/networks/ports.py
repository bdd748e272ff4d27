"""Ports of tenant networks at the pool's entry: who may have them, and the way of a program to them."""

from __future__ import annotations

import time
from pathlib import Path

from calabash.model.errors import CalabashError, Reason
from calabash.model.request import GpuRequest
from calabash.model.tenancy import Principal
from calabash.node.agent import Grant, NodeAgent
from calabash.node.ports.entry_sockets import EntrySockets
from calabash.node.ports.protocol import HostPorts, require_free
from calabash.node.slots.names import LEASE_FILE
from calabash.platform.networks.store import NetworkBook
from calabash.pool.networks.listening_ports import ServerPlaces

LEAVING_WAIT_S = 1.0
POLL_S = 0.02


class TenantPorts:
    """Safe for threads. ``places``: ports that no program has."""

    def __init__(
        self, *, home: Path, network: HostPorts, book: NetworkBook, agent: NodeAgent, places: ServerPlaces
    ) -> None:
        self.places = places
        self._network = network
        self._book = book
        self._agent = agent
        self._entry_sockets = EntrySockets(home)

    def require(self, request: GpuRequest, who: Principal) -> None:
        """Raises CalabashError where the ports of a request are not that principal's, or another has them now."""
        for port in request.ports:
            self._book.usable_port(who, port)
        self._network.require(request)
        deadline_s = time.monotonic() + LEAVING_WAIT_S
        while True:
            try:
                return require_free(request.ports, self._agent.records())
            except CalabashError:  # its holder's program may have ended in this moment
                if time.monotonic() > deadline_s:
                    raise
            time.sleep(POLL_S)

    def lacks(self, granted: Grant) -> str:
        """What of an allocation's ports does not work yet, "" when all do. Raises CalabashError."""
        return self._network.lacks(granted.record)

    def door(self, granted: Grant) -> str:
        """Where a keeper waits for the program of an allocation with ports. Raises CalabashError."""
        record = granted.record
        place = self._network.place(record)
        if place is None:
            raise CalabashError(f"{record.id} has no ports", reason=Reason.NOT_FOUND)
        brokered = bool(granted.edits.worker_socket)
        lease = Path(record.slot) / LEASE_FILE
        held = str(lease) if lease.exists() and not brokered else ""
        return self._entry_sockets.open(record, place, lease=held, member=not brokered)
