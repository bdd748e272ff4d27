"""Networks realized on a lab without a controller: objects are in OVN when ``put`` returns."""

from __future__ import annotations

import ipaddress
from types import TracebackType
from typing import Self

from tests.daemons.world import until
from tests.net.ovn_queries import ports_up

from calabash.adapters.ovn.northbound import Northbound
from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.station import Station
from calabash.model.network import NetworkKind, NetworkObject, Port, Subnet, Vpc
from calabash.net.ovn.northbound.changes import diff
from calabash.net.ovn.northbound.rows import PLATFORM, Change
from calabash.net.ovn.translation.platform import platform_rows
from calabash.net.ovn.translation.view import NetworkHosts, router_addresses
from calabash.net.ovn.translation.vpc import vpc_rows
from calabash.net.store.networks import Networks

PROTECTED = tuple(map(ipaddress.ip_network, ("172.30.0.0/24", "172.31.0.0/24", "169.254.0.0/16")))


class Site:
    """Networks of tenants on a lab. ``networks`` are removed from OVN at the end."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.networks = Networks()
        self.hosts = NetworkHosts(gateways=lab.record.gateways)
        self.northbound = Northbound(lab.northbound)
        self._stations: dict[str, Station] = {}

    def __enter__(self) -> Self:
        self.northbound.session.wait_ready(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for station in self._stations.values():
                station.remove()
            self.networks = Networks()
            self.settle()
        finally:
            self.northbound.close()

    def put(self, *items: NetworkObject) -> list[NetworkObject]:
        """Add the objects and return them as the model completed them."""
        made = []
        for item in items:
            self.networks, completed = self.networks.put(item)
            made.append(completed)
        self.settle()
        return made

    def remove(self, kind: NetworkKind, name: str, *, cascade: bool = False) -> None:
        self.networks = self.networks.remove(kind, name, cascade=cascade)
        self.settle()

    def settle(self) -> int:
        """Make OVN equal to the networks; return the number of changed rows when northd and all hosts have them."""
        changes: list[Change] = []
        vpcs = {vpc.name for vpc in self.networks.all(Vpc)}
        for vpc in sorted(vpcs | (self.northbound.owners() - {PLATFORM})):
            changes += diff(vpc_rows(self.networks, vpc, hosts=self.hosts), self.northbound.actual(vpc))
        platform = platform_rows(self.networks, protected=PROTECTED)
        changes += diff(platform, self.northbound.actual(PLATFORM))
        self.northbound.apply(tuple(changes))
        self.lab.central.nbctl("--wait=hv", "sync")
        return len(changes)

    def port(self, name: str) -> Port:
        found = self.networks.find(Port, name)
        assert found is not None, name
        return found

    def station(self, host: str, name: str) -> Station:
        """Return a station for the port, bound when this returns."""
        port = self.port(name)
        subnet = self.networks.find(Subnet, name.rsplit("/", 1)[0])
        assert subnet is not None
        lengths = {network.version: network.prefixlen for network in subnet.cidrs}
        made = self.lab.station(
            host,
            name,
            port.mac,
            [f"{address}/{lengths[address.version]}" for address in port.addresses],
            [str(address) for address in router_addresses(subnet)],
        )
        self._stations[name] = made
        until(lambda: name in ports_up(self.northbound), within_s=60, what=f"{name} is bound")
        self.lab.central.nbctl("--wait=hv", "sync")
        return made
