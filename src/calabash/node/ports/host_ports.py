"""The ports of this host, kept equal to what is held.

Theory of operation. Everything that a port is here has a name made of the pool's and the allocation's, so what is there says
by itself whose it is, and no book is kept beside the journal. An allocation is journalled before its ports are made, and a
crash at any point leaves some of their parts; the next round removes those whose allocation is not held. What is held is never
touched, only what its switch has forgotten is made again.
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
from calabash.node.ports.port_interfaces import PortParts
from calabash.node.ports.protocol import (
    LABEL_OF_THE_PLATFORM,
    HeldPlace,
    Place,
    PortBook,
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
        pool: its name, unlike any other pool's of this machine.
        switch: the host's, opened; asked again after it has failed; None where the host has none.
        book: who knows ports.
        names: what the allocations of the pool are called where every user reads it.
    """

    def __init__(
        self,
        *,
        home: Path,
        pool: str,
        switch: Callable[[], PortSwitch | None],
        book: PortBook,
        names: SlotNames | None = None,
    ) -> None:
        self._parts = PortParts(home / DIRECTORY, HostNames(pool, names or SlotNames()), switch)
        self._book = book
        self._one = threading.Lock()
        self._state = threading.Lock()
        self._attached: set[AllocationId] = set()
        self._ask_at_s: dict[AllocationId, float] = {}
        self._leaving: dict[AllocationId, tuple[str, ...]] = {}
        self._swept = False
        self._failure = ""
        self._wake: Callable[[], None] = lambda: None
        self.places: Callable[[], Collection[HeldPlace]] = tuple  # what servers hold: the pool's to say

    def require(self, request: GpuRequest) -> None:
        if request.ports and os.geteuid() != 0:
            raise CalabashError(
                f"port {request.ports[0]} cannot be had: this pool is not root's",
                reason=Reason.NOT_PERMITTED,
                hint="only root may make network namespaces; start the pool as root",
            )
        for port in request.ports:
            self._require_own(port, request.tenant)

    def attach(self, record: AllocationRecord) -> None:
        ports = record.request.ports
        if not ports:
            return
        # Both sides are written down before they look at the other, so of two at once at least one is told.
        require_no_place(record.id, ports, self.places())
        facts = [self._book.port_facts(port) for port in ports]
        with self._state:
            self._attached.add(record.id)
        with self._one:
            try:
                self._finish_leaving()
                self._parts.free(ports, by=record.id)
                self._parts.make(record.id, facts)
            except OSError as error:
                raise _broken(error) from error

    def lacks(self, record: AllocationRecord) -> str:
        """OVN says that each port is up, and each gateway answers: the first has been seen without the second."""
        for port in map(self._book.port_facts, record.request.ports):
            if not self._up(record.id, port.name):
                return f"port {port.name} is not carried out on this host"
            for gateway in map(str, port.gateways):
                if not self._answers(record.id, gateway):
                    return f"gateway {gateway} of port {port.name} does not answer"
        return ""

    def place(self, record: AllocationRecord) -> Place | None:
        return self._parts.place(record.id) if record.request.ports else None

    def leave(self, record: AllocationRecord) -> None:
        if record.request.ports:
            with self._state:
                self._attached.discard(record.id)
                self._ask_at_s.pop(record.id, None)
                self._leaving[record.id] = record.request.ports
            self._wake()

    def on_leave(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def round(self, held: Collection[AllocationRecord]) -> None:
        with self._one:
            # Later than ``held``, and not earlier than what is swept: a place that is being made is known by then.
            places = [place.record for place in self.places()]
            wanted = [*(record for record in held if record.request.ports), *places]
            try:
                self._finish_leaving()
                if wanted or not self._swept:
                    with self._state:
                        keep = self._attached.union(record.id for record in (*held, *places))
                    self._parts.sweep(keep)
                    for record in wanted:
                        self._mend(record)
                self._swept, self._failure = True, ""
            except (CalabashError, OSError) as error:
                self._parts.lose_switch()
                self._complain(str(error))

    def close(self) -> None:
        with self._one:
            self._parts.lose_switch()

    def _mend(self, record: AllocationRecord) -> None:
        """What is missing is made again; the program's namespace is its own and stays."""
        if self._parts.whole(record):
            return
        self._parts.make(record.id, [self._book.port_facts(port) for port in record.request.ports])
        log.info("ports are made again", allocation=record.id)

    def _require_own(self, port: str, tenant: str) -> None:
        """Of another tenant's port nobody learns that there is one."""
        missing = CalabashError(
            f"there is no port {port} that tenant {tenant} may use",
            reason=Reason.NOT_FOUND,
            hint="see `calabash port list`; --tenant says on whose account",
        )
        if port.rpartition("/")[2].startswith(LABEL_OF_THE_PLATFORM):
            raise missing
        try:
            facts = self._book.port_facts(port)
        except CalabashError as error:
            raise (missing if error.reason is Reason.NOT_FOUND else error) from None
        if facts.tenant not in ("", tenant):
            raise missing

    def _answers(self, allocation: AllocationId, gateway: str) -> bool:
        """Whether it has; asked for again now and then while it has not."""
        namespace = self._parts.place(allocation).namespace
        now_s = time.monotonic()
        try:
            if interfaces.answers(namespace, gateway):
                return True
            with self._state:
                due = now_s >= self._ask_at_s.get(allocation, 0.0)
                self._ask_at_s[allocation] = now_s + ASK_EVERY_S if due else self._ask_at_s[allocation]
            if due:
                interfaces.ask_for(namespace, gateway)
        except OSError as error:
            raise _broken(error) from error
        return False

    def _up(self, allocation: AllocationId, port: str) -> bool:
        with self._one:
            return self._parts.up(allocation, port)

    def _finish_leaving(self) -> None:
        with self._state:
            leaving = dict(self._leaving)
        for allocation, ports in leaving.items():
            self._parts.undo(allocation, ports)
            with self._state:
                self._leaving.pop(allocation, None)

    def _complain(self, failure: str) -> None:
        """Once, not every second."""
        if failure != self._failure:
            self._failure = failure
            log.warning("the ports of this host cannot be kept", why=failure)


def _broken(error: OSError) -> CalabashError:
    return CalabashError(
        f"the ports of this host do not obey: {error.strerror or error}",
        reason=Reason.UNREACHABLE,
        hint="see `calabash net status`",
    )
