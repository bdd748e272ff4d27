"""Ports of tenant networks for allocations: check permissions, wait until ports work, and start programs that use them."""

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
from calabash.platform.networks.store import NetworkStore
from calabash.pool.networks.listening_ports import ServerPlaces

LEAVING_WAIT_S = 1.0
POLL_S = 0.02


class TenantPorts:
    """Ports of the allocations of one pool. Safe for threads.

    Args:
        places: ports on which servers of this machine listen; these ports belong to no allocation.
    """

    def __init__(
        self, *, home: Path, network: HostPorts, network_store: NetworkStore, agent: NodeAgent, places: ServerPlaces
    ) -> None:
        self.places = places
        self._network = network
        self._network_store = network_store
        self._agent = agent
        self._entry_sockets = EntrySockets(home)

    def require(self, request: GpuRequest, who: Principal) -> None:
        """Raise CalabashError if the principal may not use the ports of a request, or another allocation has them.

        If another allocation has a port, waits LEAVING_WAIT_S seconds, because its program may be ending.
        """
        for port in request.ports:
            self._network_store.usable_port(who, port)
        self._network.require(request)
        deadline_s = time.monotonic() + LEAVING_WAIT_S
        while True:
            try:
                return require_free(request.ports, self._agent.records())
            except CalabashError:  # the program that has the port may be ending
                if time.monotonic() > deadline_s:
                    raise
            time.sleep(POLL_S)

    def lacks(self, granted: Grant) -> str:
        """Return a text that says why a port of an allocation does not work yet; "" if all work. Raises CalabashError."""
        return self._network.lacks(granted.record)

    def entry_socket(self, granted: Grant) -> str:
        """Return the path of the entry socket of an allocation with ports. Raises CalabashError.

        The process that listens on this socket starts the allocation's program in the network namespace of its ports.
        """
        record = granted.record
        place = self._network.place(record)
        if place is None:
            raise CalabashError(f"{record.id} has no ports", reason=Reason.NOT_FOUND)
        brokered = bool(granted.edits.worker_socket)
        lease = Path(record.slot) / LEASE_FILE
        held = str(lease) if lease.exists() and not brokered else ""
        return self._entry_sockets.open(record, place, lease=held, member=not brokered)
