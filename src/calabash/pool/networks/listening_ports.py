"""Ports of tenant networks on which servers of this host listen.

Such a port is held by a server, which must renew it, and not by an allocation. A **place** is what this host has for one port:
a network namespace, its interfaces, and a port of the virtual switch. The journal entry of a place is written before the place
is created and deleted when it is closed, so a restarted pool knows all places. A restarted server opens the same port under
the same name and gets the same place with its connections.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from calabash.adapters.clock import Clock
from calabash.adapters.host.files import disk_full_is_a_reason, write_durably
from calabash.binder.local.requests import new_id
from calabash.model.access import Action
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import NodeName
from calabash.model.errors import CalabashError, Reason, cause
from calabash.model.network import Port, Vpc, vpc_of
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement
from calabash.model.tenancy import Principal
from calabash.node.agent import NodeAgent
from calabash.node.ports.protocol import HeldPlace, HostPorts, Place, require_free
from calabash.platform.access.permission import Permission
from calabash.platform.networks.store import NetworkStore

JOURNAL_FILE = "places.json"
PLACES_MAX = 256


class PlaceEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Journal entry of a port on which a server of this host listens.

    Args:
        id: ID of the entry, used like the ID of an allocation.
        port: full name of the port.
        tenant: tenant of the port's VPC; "" if the VPC does not exist.
        holder: name of the server that holds the port.
        keep_s: seconds for which the server holds the port without a renewal.
    """

    id: str
    port: str
    tenant: str
    holder: str
    keep_s: float

    @property
    def record(self) -> AllocationRecord:
        """Return the entry as an allocation record, by which ``HostPorts`` identifies the owner of a port."""
        return AllocationRecord(
            id=AllocationId(self.id),
            state=AllocationState.RUNNING,
            request=GpuRequest(ports=(self.port,), tenant=self.tenant),
            placement=Placement(node=NodeName(""), mode=ModeName(""), slices=()),
        )


class PlaceJournal:
    """Journal on disk of the tenant network ports that servers of this host hold. Only one thread at a time may write.

    The pool reads it before it removes unused tenant network ports from the host, so that those of running servers are
    kept.
    """

    def __init__(self, home: Path) -> None:
        self._path = home / JOURNAL_FILE
        self.entries: tuple[PlaceEntry, ...] = self._read()

    def held(self) -> Sequence[HeldPlace]:
        """Return all entries in the form in which ``HostNetwork`` reads them."""
        return [HeldPlace(record=entry.record, holder=entry.holder) for entry in self.entries]

    def entry_of(self, port: str) -> PlaceEntry | None:
        return next((entry for entry in self.entries if entry.port == port), None)

    def put(self, entry: PlaceEntry) -> None:
        self._write((*(other for other in self.entries if other.id != entry.id), entry))

    def remove(self, entry: PlaceEntry) -> None:
        self._write(tuple(other for other in self.entries if other.id != entry.id))

    def _write(self, entries: tuple[PlaceEntry, ...]) -> None:
        with disk_full_is_a_reason(f"cannot write {self._path}"):
            write_durably(self._path, msgspec.json.encode(entries) + b"\n")
        self.entries = entries

    def _read(self) -> tuple[PlaceEntry, ...]:
        if not self._path.exists():
            return ()
        try:
            return tuple(msgspec.json.decode(self._path.read_bytes(), type=list[PlaceEntry]))
        except msgspec.MsgspecError as error:
            raise CalabashError(
                f"{self._path} is damaged: {cause(error)}",
                reason=Reason.BAD_FILE,
                hint="move it away: servers with ports take them anew",
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedPlace:
    """Port on which a server of this host listens.

    Args:
        entry: journal entry of the port.
        place: network namespace of the port on this host.
        addresses: IP addresses of the port; () if the port was deleted from its VPC.
    """

    entry: PlaceEntry
    place: Place
    addresses: tuple[str, ...]


class ServerPlaces:
    """Ports on which servers of this host listen: creates and deletes their network namespaces. Safe for threads."""

    def __init__(
        self,
        journal: PlaceJournal,
        *,
        network: HostPorts,
        network_store: NetworkStore,
        agent: NodeAgent,
        permission: Permission,
        clock: Clock,
    ) -> None:
        self._journal = journal
        self._network = network
        self._network_store = network_store
        self._agent = agent
        self._permission = permission
        self._clock = clock
        self._lock = threading.Lock()
        self._until_ns = {entry.id: self._after(entry) for entry in journal.entries}

    def open(self, who: Principal, *, port: str, holder: str, keep_s: float) -> OpenedPlace:
        """Create the network namespace of a port for a server, or renew the port if the server holds it already.

        The port may not work at once: see ``lacks``.

        Args:
            port: full name of the port.
            holder: name of the server.
            keep_s: seconds for which the server holds the port without a renewal.

        Raises CalabashError: CONFLICT for a port that another server or allocation has, NOT_FOUND, NOT_PERMITTED, UNREACHABLE.
        """
        self._require_operator(who, f"open port {port} for a server")
        found = self._network_store.usable_port(who, port)
        vpc = self._network_store.state().networks.find(Vpc, vpc_of(port))
        entry, new = self._entered(port, vpc.tenant if vpc else "", holder, keep_s)
        record = entry.record
        try:
            self._network.require(record.request)
            require_free(record.request.ports, self._agent.records())
            self._network.attach(record)
        except BaseException:
            if new:
                self._delete(entry)
            raise
        return self._view(entry, found)

    def free(self, port: str) -> bool:
        """Return True if no server holds the port."""
        return self._journal.entry_of(port) is None

    def lacks(self, view: OpenedPlace) -> str:
        """Return a text that says why the port does not work yet; "" if it works. Raises CalabashError."""
        return self._network.lacks(view.entry.record)

    def close(self, who: Principal, port: str) -> PlaceEntry:
        """Take a port from its server and end the port's connections; return its journal entry. Raises NOT_FOUND."""
        self._require_operator(who, f"take port {port[:128]} from a server")
        entry = self._journal.entry_of(port)
        if entry is None:
            raise CalabashError(
                f"no server holds port {port[:128]}",
                reason=Reason.NOT_FOUND,
                hint="see `calabash remote server status`",
            )
        self._delete(entry)
        return entry

    def views(self, who: Principal) -> list[OpenedPlace]:
        """Return the ports of all servers. Raises NOT_PERMITTED unless the principal may operate the pool."""
        self._permission.require(who, Action.OPERATE, "see the ports of servers")
        networks = self._network_store.state().networks
        return [self._view(entry, networks.find(Port, entry.port)) for entry in self._journal.entries]

    def close_all(self, *, force: bool) -> None:
        """Take all ports from their servers for the shutdown of the pool.

        Raises CONFLICT if a server holds a port and ``force`` is false.
        """
        held = self._journal.entries
        if held and not force:
            raise CalabashError(
                f"port {held[0].port} is held by {held[0].holder}",
                reason=Reason.CONFLICT,
                hint="stop that server with `calabash remote server down`, or `calabash down --force` takes the port",
            )
        for entry in self._journal.entries:
            self._delete(entry)

    def end_overdue(self) -> None:
        """Take the ports from servers that have not renewed them in time."""
        now_ns = self._clock.monotonic_ns()
        for entry in [e for e in self._journal.entries if self._until_ns.get(e.id, now_ns) < now_ns]:
            self._agent.event("released", message=f"port {entry.port} was kept for {entry.holder}, which is silent")
            self._delete(entry)

    # -- inside ------------------------------------------------------------------------------------------------

    def _require_operator(self, who: Principal, what: str) -> None:
        self._permission.require(who, Action.OPERATE, what)
        self._permission.require_process(who, what)

    def _entered(self, port: str, tenant: str, holder: str, keep_s: float) -> tuple[PlaceEntry, bool]:
        """Write the journal entry of a port, or renew it; return the entry, and True if it is new.

        Raises CONFLICT if another server holds the port, NO_CAPACITY if servers of this host hold PLACES_MAX ports.
        """
        with self._lock:
            known = self._journal.entry_of(port)
            if known is not None and known.holder != holder:
                raise CalabashError(
                    f"port {port} is held by {known.holder}, and by one at a time",
                    reason=Reason.CONFLICT,
                    hint="stop that server, or create another port: calabash net port create",
                )
            if known is None and len(self._journal.entries) >= PLACES_MAX:
                raise CalabashError(
                    f"servers of this host hold {PLACES_MAX} ports, which is all it has",
                    reason=Reason.NO_CAPACITY,
                    hint="stop one: calabash remote server down",
                )
            entry = PlaceEntry(
                id=known.id if known else new_id(), port=port, tenant=tenant, holder=holder, keep_s=keep_s
            )
            self._until_ns[entry.id] = self._after(entry)
            if entry != known:
                self._journal.put(entry)
            return entry, known is None

    def _delete(self, entry: PlaceEntry) -> None:
        """Delete a journal entry, and then the network namespace and switch port that this host has for it.

        If the pool crashes between the two steps, the next removal of unused ports deletes the rest.
        """
        with self._lock:
            self._journal.remove(entry)
            self._until_ns.pop(entry.id, None)
        self._network.leave(entry.record)

    def _view(self, entry: PlaceEntry, port: Port | None) -> OpenedPlace:
        place = self._network.place(entry.record)
        assert place is not None
        addresses = tuple(str(address) for address in port.addresses) if port else ()
        return OpenedPlace(entry=entry, place=place, addresses=addresses)

    def _after(self, entry: PlaceEntry) -> int:
        return self._clock.monotonic_ns() + int(entry.keep_s * 1e9)
