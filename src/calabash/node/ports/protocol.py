"""What the host's side of tenant networks is asked, and what it asks of others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from calabash.model.addresses import Address, Network
from calabash.model.allocation import AllocationRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import GpuRequest

READY_WITHIN_S = 10.0  # after that ports do not work any more
LABEL_OF_THE_PLATFORM = "x-"  # ports that begin so are its own


class PortSwitch(Protocol):
    """The switch of this host. Methods raise CalabashError(UNREACHABLE) when it does not answer, and may be called from any
    thread, not by two at a time."""

    @property
    def namespace(self) -> Path | None:
        """The network namespace that its ports are in; None: this process's."""
        ...

    def plug(self, interface: str, *, iface_id: str, owner: str) -> None:
        """Make an interface its port, which OVN knows as ``iface_id``; again changes nothing. ``owner`` is kept beside it."""
        ...

    def unplug(self, interface: str) -> None:
        """Take it out; nothing where it is none of its ports."""
        ...

    def plugged(self) -> Mapping[str, tuple[str, str]]:
        """Its ports that have an owner: interface -> (iface_id, owner)."""
        ...

    def up(self, interface: str) -> bool:
        """Whether OVN has carried out that port on this host."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PortFacts:
    """What of a port its host must know.

    Args:
        name: ``VPC/SUBNET/PORT``.
        tenant: whose VPC it is in; "": anybody's.
        addresses: each with its subnet's range.
        gateways: the router's address in each range.
        reaches: ranges of the VPC, which are behind the gateways also where another port has the way out.
        resolvers, domain: who answers DNS there, and of which domain its names are; empty where nobody does.
    """

    name: str
    mac: str
    addresses: tuple[tuple[Address, Network], ...]
    gateways: tuple[Address, ...]
    tenant: str = ""
    mtu_bytes: int = 1400
    reaches: tuple[Network, ...] = ()
    resolvers: tuple[Address, ...] = ()
    domain: str = ""


class PortBook(Protocol):
    """Who knows ports."""

    def port_facts(self, name: str) -> PortFacts:
        """Raises CalabashError(NOT_FOUND)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the program of an allocation with ports runs: its namespace, and the resolv.conf that it is to see, if any."""

    namespace: Path
    directory: Path
    resolver_file: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPlace:
    """Ports that no allocation holds: as the record of one, and by what name people know its holder."""

    record: AllocationRecord
    holder: str


class HostPorts(Protocol):
    """Ports of allocations on this host. Methods may be called from any thread."""

    def require(self, request: GpuRequest) -> None:
        """Raises CalabashError where the ports of a request cannot be had here: UNSUPPORTED, NOT_FOUND, NOT_PERMITTED."""
        ...

    def attach(self, record: AllocationRecord) -> None:
        """Make what its ports are here; ``lacks`` says when they work. Asked again it changes nothing. Raises CalabashError;
        then ``leave`` is to be called."""
        ...

    def lacks(self, record: AllocationRecord) -> str:
        """What of its ports does not work yet, "" when all do. Never waits. Raises CalabashError."""
        ...

    def place(self, record: AllocationRecord) -> Place | None:
        """None where it has no ports."""
        ...

    def leave(self, record: AllocationRecord) -> None:
        """It is over: all that is here of it goes, soon. Never waits."""
        ...

    def on_leave(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called when there is something to remove, so that ``round`` is called soon."""
        ...

    def round(self, held: Collection[AllocationRecord]) -> None:
        """Remove what is nobody's, mend what is missing. Takes as long as the switch does."""
        ...

    def close(self) -> None:
        """The agent stops; everything stays."""
        ...


class NoPorts:
    """A host without tenant networks."""

    def require(self, request: GpuRequest) -> None:
        if request.ports:
            raise CalabashError(
                f"port {request.ports[0]} cannot be had: this pool has no tenant networks",
                reason=Reason.UNSUPPORTED,
                hint="start them with `calabash net up`",
            )

    def attach(self, record: AllocationRecord) -> None:
        self.require(record.request)

    def lacks(self, record: AllocationRecord) -> str:
        del record
        return ""

    def place(self, record: AllocationRecord) -> Place | None:
        del record
        return None

    def leave(self, record: AllocationRecord) -> None:
        """Nothing is here."""

    def on_leave(self, wake: Callable[[], None]) -> None:
        """Nothing is here."""

    def round(self, held: Collection[AllocationRecord]) -> None:
        """Nothing is here."""

    def close(self) -> None:
        """Nothing is open."""


def require_no_place(record_id: str, ports: Sequence[str], held: Collection[HeldPlace]) -> None:
    """Raises CalabashError(CONFLICT) when a server of this host listens at one of them."""
    for place in held:
        for port in ports:
            if port in place.record.request.ports and place.record.id != record_id:
                raise CalabashError(
                    f"port {port} is held by {place.holder}, and by one at a time",
                    reason=Reason.CONFLICT,
                    hint="stop that server, or create another port: calabash port create",
                )


def require_free(ports: Sequence[str], held: Collection[AllocationRecord]) -> None:
    """Raises CalabashError(CONFLICT) when one of them is held: a port has one holder at a time."""
    for record in held:
        for port in ports:
            if port in record.request.ports:
                raise CalabashError(
                    f"port {port} is held by {record.id}, and by one at a time",
                    reason=Reason.CONFLICT,
                    hint="wait until that has ended, or create another: calabash port create",
                )
