"""What a VPC's rows are made of: its objects, those of others that it refers to, and the hosts that are gateways."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from calabash.model.addresses import Address, Network
from calabash.model.network import NetworkObject, Port, Subnet, Vpc
from calabash.net.objects import NetworkObjects, VpcObjects

T = TypeVar("T", bound=NetworkObject)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkHosts:
    """Names of the hosts (``system-id``) through which networks reach the outside, whether they live or not."""

    gateways: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One VPC in the book of all."""

    networks: NetworkObjects
    vpc: Vpc
    hosts: NetworkHosts

    @property
    def own(self) -> VpcObjects:
        return self.networks.of_vpc(self.vpc.name)

    def all(self, of: type[T]) -> Mapping[str, T]:
        """Its objects of one class, by name."""
        return self.own.all(of)

    def subnet_of(self, port: Port) -> Subnet:
        return self.all(Subnet)[port.name.rsplit("/", 1)[0]]

    def priorities(self, wanted: tuple[str, ...]) -> Iterator[tuple[str, int]]:
        """Gateway hosts with their priority: those that are wanted in their order, else all, each VPC with another first.

        Who is first takes the VPC's traffic while it lives, so that VPCs are spread over the hosts.
        """
        hosts = wanted
        if not hosts and self.hosts.gateways:
            first = self.vpc.number % len(self.hosts.gateways)
            hosts = self.hosts.gateways[first:] + self.hosts.gateways[:first]
        for place, host in enumerate(hosts):
            yield host, 100 - place


def of_version(networks: Iterable[Network], version: int) -> tuple[Network, ...]:
    return tuple(network for network in networks if network.version == version)


def one_of(networks: Iterable[Network | Address]) -> str:
    """As the right side of ``==`` in an expression: ``{10.0.0.0/16, 10.2.0.0/16}``."""
    return "{" + ", ".join(sorted(str(network) for network in networks)) + "}"


def gateways_of(subnet: Subnet) -> tuple[Address, ...]:
    """The router's address in each range: where none is set, the first."""
    return subnet.gateways or tuple(network[1] for network in subnet.cidrs)
