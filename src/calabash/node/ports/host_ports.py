"""Reconciler of the tenant network ports of this host with the allocations that are held.

Theory of operation. A port consists of parts: a namespace, a pair of interfaces, and a switch port. The name of each
part contains the pool and the allocation, so its owner is known from the name and no record besides the journal is
needed. An allocation is journalled before its ports are made. A crash at any point may leave some parts; the next round
removes those whose allocation is not held. Existing parts of a held allocation are not changed, and missing ones are
made again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

import structlog

from calabash.adapters.links import interfaces
from calabash.model.allocation import AllocationRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId, GpuRequest
from calabash.node.ports.interface_names import HostNames
from calabash.node.ports.port_interfaces import PortInterfaces
from calabash.node.ports.protocol import (
    LABEL_OF_THE_PLATFORM,
    HeldPlace,
    Place,
    PortSource,
    PortSwitch,
    require_no_place,
)
from calabash.node.slots.names import SlotNames

ASK_EVERY_S = 1.0
DIRECTORY = "net"

log = structlog.get_logger(__name__)


class HostNetwork:
    """Ports of one pool on one host.

    Args:
        home: the pool's directory, for files that programs see.
        pool: name of the pool, unique on this machine.
        switch: opens the host's switch; called again after a failure; returns None if the host has none.
        source: source of the facts about ports.
        names: random names of slots. They replace allocation IDs in names that every user can read.
        places: returns the ports that servers of the pool, such as gateways, hold.
    """

    def __init__(
        self,
        *,
        home: Path,
        pool: str,
        switch: Callable[[], PortSwitch | None],
        source: PortSource,
        names: SlotNames | None = None,
        places: Callable[[], Collection[HeldPlace]] = tuple,
    ) -> None:
        self._interfaces = PortInterfaces(home / DIRECTORY, HostNames(pool, names or SlotNames()), switch)
        self._source = source
        self._switch_lock = threading.Lock()
        self._state_lock = threading.Lock()
        self._attached: set[AllocationId] = set()
        self._ask_at_s: dict[AllocationId, float] = {}
        self._ended: dict[AllocationId, tuple[str, ...]] = {}
        self._swept = False
        self._failure = ""
        self._wake: Callable[[], None] = lambda: None
        self._places = places

    def require(self, request: GpuRequest) -> None:
        """Check that the request's ports can be attached.

        Raises NOT_PERMITTED if the pool does not run as root, NOT_FOUND for an unknown port.
        """
        if request.ports and os.geteuid() != 0:
            raise CalabashError(
                f"port {request.ports[0]} cannot be attached: this pool does not run as root",
                reason=Reason.NOT_PERMITTED,
                hint="only root may create network namespaces; start the pool as root",
            )
        for port in request.ports:
            self._require_visible(port, request.tenant)

    def attach(self, record: AllocationRecord) -> None:
        ports = record.request.ports
        if not ports:
            return
        # Both holders record themselves before they check the other, so of two concurrent ones at least one is refused.
        require_no_place(record.id, ports, self._places())
        facts = [self._source.port_facts(port) for port in ports]
        with self._state_lock:
            self._attached.add(record.id)
        with self._switch_lock:
            try:
                self._remove_ended()
                self._interfaces.free(ports, by=record.id)
                self._interfaces.make(record.id, facts)
            except OSError as error:
                raise _interface_error(error) from error

    def lacks(self, record: AllocationRecord) -> str:
        """Return a text on the first port that does not work yet, or "".

        A port works if OVN has installed it and all gateways of its subnet answer.

        Both are checked, because a port that OVN reports as installed may not pass traffic yet.
        """
        for port in map(self._source.port_facts, record.request.ports):
            if not self._up(record.id, port.name):
                return f"OVN has not installed port {port.name} on this host"
            for gateway in map(str, port.gateways):
                if not self._answers(record.id, gateway):
                    return f"gateway {gateway} of port {port.name} does not answer"
        return ""

    def place(self, record: AllocationRecord) -> Place | None:
        return self._interfaces.place(record.id) if record.request.ports else None

    def leave(self, record: AllocationRecord) -> None:
        if record.request.ports:
            with self._state_lock:
                self._attached.discard(record.id)
                self._ask_at_s.pop(record.id, None)
                self._ended[record.id] = record.request.ports
            self._wake()

    def on_leave(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def round(self, held: Collection[AllocationRecord]) -> None:
        with self._switch_lock:
            # Read after ``held`` and before the sweep, so that a place that is being made is not swept.
            places = [place.record for place in self._places()]
            wanted = [*(record for record in held if record.request.ports), *places]
            try:
                self._remove_ended()
                if wanted or not self._swept:
                    with self._state_lock:
                        keep = self._attached.union(record.id for record in (*held, *places))
                    self._interfaces.sweep(keep)
                    for record in wanted:
                        self._repair(record)
                self._swept, self._failure = True, ""
            except (CalabashError, OSError) as error:
                self._interfaces.lose_switch()
                self._log_failure(str(error))

    def close(self) -> None:
        with self._switch_lock:
            self._interfaces.lose_switch()

    def _repair(self, record: AllocationRecord) -> None:
        """Make missing parts of an allocation's ports again. The existing namespace, which the program uses, stays."""
        if self._interfaces.is_complete(record):
            return
        self._interfaces.make(record.id, [self._source.port_facts(port) for port in record.request.ports])
        log.info("ports are made again", allocation=record.id)

    def _require_visible(self, port: str, tenant: str) -> None:
        """Raise NOT_FOUND unless the tenant may use the port.

        The error is the same for a port of another tenant and for a missing port, so that it does not disclose ports.
        """
        missing = CalabashError(
            f"there is no port {port} that tenant {tenant} may use",
            reason=Reason.NOT_FOUND,
            hint="see `calabash net port list`; the option --tenant selects the tenant",
        )
        if port.rpartition("/")[2].startswith(LABEL_OF_THE_PLATFORM):
            raise missing
        try:
            facts = self._source.port_facts(port)
        except CalabashError as error:
            raise (missing if error.reason is Reason.NOT_FOUND else error) from None
        if facts.tenant not in ("", tenant):
            raise missing

    def _answers(self, allocation: AllocationId, gateway: str) -> bool:
        """Return True if a gateway has answered; ask again every ``ASK_EVERY_S`` until it has."""
        namespace = self._interfaces.place(allocation).namespace
        now_s = time.monotonic()
        try:
            if interfaces.neighbour_answers(namespace, gateway):
                return True
            with self._state_lock:
                due = now_s >= self._ask_at_s.get(allocation, 0.0)
                self._ask_at_s[allocation] = now_s + ASK_EVERY_S if due else self._ask_at_s[allocation]
            if due:
                interfaces.resolve_neighbour(namespace, gateway)
        except OSError as error:
            raise _interface_error(error) from error
        return False

    def _up(self, allocation: AllocationId, port: str) -> bool:
        with self._switch_lock:
            return self._interfaces.up(allocation, port)

    def _remove_ended(self) -> None:
        with self._state_lock:
            ended = dict(self._ended)
        for allocation, ports in ended.items():
            self._interfaces.undo(allocation, ports)
            with self._state_lock:
                self._ended.pop(allocation, None)

    def _log_failure(self, failure: str) -> None:
        """Log a failure if it differs from the last one."""
        if failure != self._failure:
            self._failure = failure
            log.warning("the ports of this host cannot be reconciled", why=failure)


def _interface_error(error: OSError) -> CalabashError:
    return CalabashError(
        f"an interface of this host cannot be used: {error.strerror or error}",
        reason=Reason.UNREACHABLE,
        hint="see `calabash net status`",
    )
