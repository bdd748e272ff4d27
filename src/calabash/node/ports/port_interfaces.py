"""Creation, discovery and removal of the namespaces, interfaces and switch ports of allocations. One thread at a time.

Parts are made in this order:

    namespace -> pair of interfaces, one end in the namespace -> port of the switch

and removed in this one: the pair (from then on no traffic passes), the port of the switch, the directory, and last the
namespace, whose name shows the next agent that other parts may be left.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import structlog

from calabash.adapters.links import interfaces, namespaces
from calabash.adapters.links.interfaces import LinkEnd, LinkSettings
from calabash.model.addresses import Network
from calabash.model.allocation import AllocationRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import PORTS_MAX, AllocationId
from calabash.node.ports.interface_names import RESOLVER_FILE, HostNames, inner
from calabash.node.ports.protocol import Place, PortFacts, PortSwitch

log = structlog.get_logger(__name__)


class PortInterfaces:
    """Namespaces, interface pairs and switch ports of one pool.

    Args:
        directory: directory for the files that programs see.
        names: names of the parts.
        open_switch: opens the host's switch; returns None if the host has none.
    """

    def __init__(self, directory: Path, names: HostNames, open_switch: Callable[[], PortSwitch | None]) -> None:
        self._directory = directory
        self._names = names
        self._open = open_switch
        self._switch: PortSwitch | None = None

    def place(self, allocation: AllocationId) -> Place:
        """Return the namespace and files of an allocation's program."""
        directory = self._directory / self._names.directory(allocation)
        resolver = directory / RESOLVER_FILE
        return Place(
            namespace=namespaces.path_of(self._names.namespace(allocation)),
            directory=directory,
            resolver_file=resolver if resolver.exists() else None,
        )

    def up(self, allocation: AllocationId, port: str) -> bool:
        """Return True if OVN has installed the port on this host."""
        return self._opened().up(self._names.outer(allocation, port))

    def make(self, allocation: AllocationId, facts: Sequence[PortFacts]) -> None:
        """Make the missing parts of an allocation's ports. Raises CalabashError."""
        switch, name = self._opened(), self._names.namespace(allocation)
        try:
            self._write_files(allocation, resolver_text(facts))
            namespaces.create(name)
            for index, port in enumerate(facts):
                outer = LinkEnd(namespace=switch.namespace, name=self._names.outer(allocation, port.name))
                within = LinkEnd(namespace=namespaces.path_of(name), name=inner(index))
                interfaces.join(outer, within)
                interfaces.set_up(within, link_settings(port, first=index == 0))
                interfaces.set_up(outer)
                switch.plug(outer.name, iface_id=port.name, owner=self._names.owner(allocation))
        except OSError as error:
            raise CalabashError(
                f"the ports of {allocation} cannot be made: {error.strerror or error}",
                reason=Reason.UNREACHABLE,
                hint="see `calabash net status`",
            ) from error

    def undo(self, allocation: AllocationId, ports: Sequence[str]) -> None:
        """Remove all existing parts of an allocation's ports.

        On a host without a switch, only the namespace and the files are removed, as no interface is plugged in.

        Raises:
            CalabashError, OSError: the switch does not answer, or a part cannot be removed; call again.
        """
        name = self._names.namespace(allocation)
        if namespaces.exists(name):
            # Interfaces are removed also if a process holds the namespace open.
            for index in range(PORTS_MAX):
                interfaces.remove(LinkEnd(namespace=namespaces.path_of(name), name=inner(index)))
        self._switch = self._switch or self._open()
        if self._switch is not None:
            self._unplug(self._switch, allocation, ports)
        shutil.rmtree(self._directory / self._names.directory(allocation), ignore_errors=True)
        namespaces.remove(name)

    def _unplug(self, switch: PortSwitch, allocation: AllocationId, ports: Sequence[str]) -> None:
        plugged = switch.plugged()
        outer = {self._names.outer(allocation, port) for port in ports}
        outer |= {i for i, (_, owner) in plugged.items() if self._names.of_owner(owner) == allocation}
        for interface in sorted(outer & plugged.keys()):
            switch.unplug(interface)

    def sweep(self, keep: Collection[AllocationId]) -> None:
        """Remove the namespaces, interfaces and switch ports of all allocations that are not in ``keep``.

        A crash may have left them. Raises as ``undo`` does.
        """
        found = {self._names.of_namespace(name) for name in namespaces.names(self._names.prefix)}
        if self._directory.is_dir():
            found |= {self._names.of_directory(entry.name) for entry in self._directory.iterdir()}
        self._switch = self._switch or self._open()
        if self._switch is not None:
            found |= {self._names.of_owner(owner) for _, owner in self._switch.plugged().values()}
        for allocation in found:
            if allocation is not None and allocation not in keep:
                self.undo(allocation, ())
                log.info("removed the ports of an allocation that is not held", allocation=allocation)

    def free(self, ports: Sequence[str], *, by: AllocationId) -> None:
        """Unplug ports that are left over from other allocations, before they are made for the allocation ``by``."""
        for interface, (iface_id, owner) in self._opened().plugged().items():
            if iface_id in ports and self._names.of_owner(owner) not in (None, by):
                interfaces.remove(LinkEnd(namespace=self._opened().namespace, name=interface))
                self._opened().unplug(interface)

    def is_complete(self, record: AllocationRecord) -> bool:
        """Return True if all interfaces of an allocation exist and are plugged in."""
        switch = self._opened()
        plugged = switch.plugged()
        outer = [
            LinkEnd(namespace=switch.namespace, name=self._names.outer(record.id, p)) for p in record.request.ports
        ]
        return all(end.name in plugged and interfaces.present(end) for end in outer)

    def lose_switch(self) -> None:
        """Close the connection to the switch, which is opened again when it is needed."""
        switch, self._switch = self._switch, None
        if switch is not None:
            switch.close()

    def _opened(self) -> PortSwitch:
        self._switch = self._switch or self._open()
        if self._switch is None:
            raise CalabashError(
                "this host has no switch for tenant networks",
                reason=Reason.UNREACHABLE,
                hint="start it: calabash net up",
            )
        return self._switch

    def _write_files(self, allocation: AllocationId, resolver: str) -> None:
        for directory in (self._directory, self._directory / self._names.directory(allocation)):
            directory.mkdir(mode=0o711, exist_ok=True)
            directory.chmod(0o711)  # regardless of the umask: programs of other users must be able to traverse it
        if resolver:
            file = self._directory / self._names.directory(allocation) / RESOLVER_FILE
            file.write_text(resolver)
            file.chmod(0o644)


def link_settings(facts: PortFacts, *, first: bool) -> LinkSettings:
    """Return the settings of one port's interface.

    The first port of an allocation gets the default routes; the others get routes to their own VPC.
    """
    routes: list[tuple[str, str]] = []
    for gateway in facts.gateways:
        ranges = (
            [_default_route(gateway.version)]
            if first
            else [str(n) for n in facts.reaches if _is_beyond_subnet(n, facts)]
        )
        routes += [(text, str(gateway)) for text in ranges if (":" in text) == (gateway.version == 6)]
    return LinkSettings(
        mac=facts.mac,
        mtu_bytes=facts.mtu_bytes,
        addresses=tuple(f"{address}/{network.prefixlen}" for address, network in facts.addresses),
        routes=tuple(routes),
    )


def resolver_text(ports: Sequence[PortFacts]) -> str:
    """Return the resolv.conf of a program with these ports; "" if none of their subnets has DNS."""
    servers = dict.fromkeys(str(server) for facts in ports for server in facts.resolvers)
    domains = dict.fromkeys(facts.domain for facts in ports if facts.domain and facts.resolvers)
    if not servers:
        return ""
    lines = [f"nameserver {server}" for server in list(servers)[:3]]  # libc uses no more
    return "\n".join(([f"search {' '.join(domains)}"] if domains else []) + lines) + "\n"


def _default_route(version: int) -> str:
    return "::/0" if version == 6 else "0.0.0.0/0"


def _is_beyond_subnet(network: Network, facts: PortFacts) -> bool:
    """Return True if a network is not one of the subnet ranges of the port's own addresses."""
    return network not in {own for _, own in facts.addresses}
