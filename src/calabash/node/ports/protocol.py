"""Interfaces of tenant networks on a host: the ports of allocations, the host's switch, and the facts about ports."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from calabash.model.addresses import Address, Network
from calabash.model.allocation import AllocationRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import GpuRequest

READY_WITHIN_S = 10.0  # ports that do not work within this time are considered broken
LABEL_OF_THE_PLATFORM = "x-"  # prefix of the labels of the platform's own ports


class PortSwitch(Protocol):
    """The switch of this host.

    Methods may be called from any thread, one at a time. They raise UNREACHABLE if the switch does not answer.
    """

    @property
    def namespace(self) -> Path | None:
        """Network namespace in which the switch's ports are; None: the namespace of this process."""
        ...

    def plug(self, interface: str, *, iface_id: str, owner: str) -> None:
        """Add an interface to the switch as the OVN port ``iface_id``, and store its owner. Idempotent."""
        ...

    def unplug(self, interface: str) -> None:
        """Remove an interface from the switch. Does nothing if it is not plugged in."""
        ...

    def plugged(self) -> Mapping[str, tuple[str, str]]:
        """Return the switch's ports that have an owner: interface -> (iface_id, owner)."""
        ...

    def up(self, interface: str) -> bool:
        """Return True if OVN has installed the port on this host."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PortFacts:
    """Facts about a port that its host needs.

    Args:
        name: ``VPC/SUBNET/PORT``.
        addresses: each address with the range of its subnet.
        gateways: the router's address in each range.
        tenant: owner of the VPC; "" if every tenant may use it.
        reaches: address ranges of the VPC, which are routed to the gateways even if another port has the default route.
        resolvers: addresses of the DNS servers; empty without DNS.
        domain: DNS domain of the subnet; empty without DNS.
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


class PortSource(Protocol):
    """Source of the facts about ports."""

    def port_facts(self, name: str) -> PortFacts:
        """Return the facts about a port. Raises NOT_FOUND."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Network namespace of an allocation's program, with the directory of its files and its resolv.conf, if any."""

    namespace: Path
    directory: Path
    resolver_file: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPlace:
    """Ports that a server of the pool, such as a gateway, holds instead of an allocation.

    Args:
        record: the ports in the form of an allocation record.
        holder: name of the server for messages.
    """

    record: AllocationRecord
    holder: str


class HostPorts(Protocol):
    """Ports of allocations on this host. Methods may be called from any thread."""

    def require(self, request: GpuRequest) -> None:
        """Check that the request's ports can be attached.

        Raises:
            CalabashError: UNSUPPORTED, NOT_FOUND or NOT_PERMITTED.
        """
        ...

    def attach(self, record: AllocationRecord) -> None:
        """Make the namespace, interfaces and switch ports of an allocation. Idempotent.

        ``lacks`` tells if the ports work. Raises CalabashError; the caller then calls ``leave``.
        """
        ...

    def lacks(self, record: AllocationRecord) -> str:
        """Return a description of the first port that does not work yet, or "". Never waits. Raises CalabashError."""
        ...

    def place(self, record: AllocationRecord) -> Place | None:
        """Return the namespace and files of an allocation's program; None if the allocation has no ports."""
        ...

    def leave(self, record: AllocationRecord) -> None:
        """Schedule the removal of the ports of an allocation that has ended. Never waits."""
        ...

    def on_leave(self, wake: Callable[[], None]) -> None:
        """Set the function that is called when there are ports to remove, so that ``round`` is called soon."""
        ...

    def round(self, held: Collection[AllocationRecord]) -> None:
        """Remove the ports of allocations that are not in ``held``, and make missing parts of the ports of those in it.

        Waits for the switch.
        """
        ...

    def close(self) -> None:
        """Close the switch when the agent stops. All ports stay."""
        ...


class NoPorts:
    """Implementation of ``HostPorts`` for a host without tenant networks."""

    def require(self, request: GpuRequest) -> None:
        """Refuse requests with ports. Raises UNSUPPORTED if there are any."""
        if request.ports:
            raise CalabashError(
                f"port {request.ports[0]} cannot be attached: this pool has no tenant networks",
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
        """Do nothing."""

    def on_leave(self, wake: Callable[[], None]) -> None:
        """Do nothing."""

    def round(self, held: Collection[AllocationRecord]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def require_no_place(record_id: str, ports: Sequence[str], held: Collection[HeldPlace]) -> None:
    """Raise CONFLICT if a server of this host holds one of the ports.

    Args:
        record_id: ID of the server or allocation that wants the ports; ports that it holds already are no conflict.
    """
    for place in held:
        for port in ports:
            if port in place.record.request.ports and place.record.id != record_id:
                raise CalabashError(
                    f"port {port} is held by {place.holder}, and a port has one holder at a time",
                    reason=Reason.CONFLICT,
                    hint="stop that server, or create another port: calabash net port create",
                )


def require_free(ports: Sequence[str], held: Collection[AllocationRecord]) -> None:
    """Raise CONFLICT if an allocation holds one of the ports."""
    for record in held:
        for port in ports:
            if port in record.request.ports:
                raise CalabashError(
                    f"port {port} is held by {record.id}, and a port has one holder at a time",
                    reason=Reason.CONFLICT,
                    hint="wait until that allocation has ended, or create another port: calabash net port create",
                )
