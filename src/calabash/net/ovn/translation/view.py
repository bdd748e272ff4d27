"""Input of the translation of one VPC: its objects, the gateway hosts, closed backends, and helpers for match expressions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from calabash.model.addresses import Address, Network
from calabash.model.network import NetworkObject, Port, Subnet, Vpc
from calabash.net.objects.backends import NONE_CLOSED, ClosedBackends
from calabash.net.objects.collection import NetworkObjects, VpcObjects

PRIORITY_MAX = 100  # priority of the first gateway host
T = TypeVar("T", bound=NetworkObject)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkHosts:
    """Names (``system-id``) of the gateway hosts, whether or not they are available.

    Args:
        gateways: all gateway hosts.
        resting: gateway hosts that were lost and are available again. They get the lowest priorities, in this order, so
            that they carry no traffic until they have been stable for some time.
    """

    gateways: tuple[str, ...] = ()
    resting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Input of the translation of one VPC.

    Args:
        networks: all networks, because peerings and endpoints refer to other VPCs.
        vpc: the VPC to be translated.
        hosts: the gateway hosts.
        closed: backends whose programs have stopped listening (``objects.backends``).
    """

    networks: NetworkObjects
    vpc: Vpc
    hosts: NetworkHosts
    closed: ClosedBackends = NONE_CLOSED

    @property
    def objects(self) -> VpcObjects:
        """Objects of the VPC."""
        return self.networks.of_vpc(self.vpc.name)

    def all(self, object_type: type[T]) -> Mapping[str, T]:
        """Return the objects of one class in the VPC, by name."""
        return self.objects.all(object_type)

    def subnet_of(self, port: Port) -> Subnet:
        """Return the subnet of a port."""
        return self.all(Subnet)[port.name.rsplit("/", 1)[0]]

    def priorities(self, wanted: tuple[str, ...], number: int) -> Iterator[tuple[str, int]]:
        """Yield gateway hosts with their priorities, highest first.

        The available host with the highest priority carries the traffic. If no hosts are preferred, the order is
        computed by rendezvous hashing. This spreads networks over the hosts, and an additional host does not change the
        order of the other ones.

        Args:
            wanted: the preferred hosts in their order; if empty, all gateway hosts.
            number: number of the VPC or endpoint, from which the order is computed.
        """
        hosts = wanted or sorted(self.hosts.gateways, key=lambda host: _weight(number, host))
        held_back = {host: place for place, host in enumerate(self.hosts.resting, 1)}
        for place, host in enumerate(sorted(hosts, key=lambda host: held_back.get(host, 0))):
            yield host, PRIORITY_MAX - place


def _weight(number: int, host: str) -> bytes:
    return hashlib.blake2b(f"{host}/{number}".encode(), digest_size=8).digest()


def filter_version(networks: Iterable[Network], version: int) -> tuple[Network, ...]:
    """Return the ranges of one IP version."""
    return tuple(network for network in networks if network.version == version)


def match_set(networks: Iterable[Network | Address]) -> str:
    """Format ranges and addresses as the set on the right side of ``==`` in a match: ``{10.0.0.0/16, 10.2.0.0/16}``."""
    return "{" + ", ".join(sorted(str(network) for network in networks)) + "}"


def first_of_version(addresses: Iterable[Address], version: int) -> Address | None:
    """Return the first address of one IP version, or None."""
    return next((address for address in addresses if address.version == version), None)


def format_socket(address: Address, number: int) -> str:
    """Format an address and a port number: ``10.0.0.7:80``, ``[fd00::7]:80``."""
    return f"[{address}]:{number}" if address.version == 6 else f"{address}:{number}"


def router_addresses(subnet: Subnet) -> tuple[Address, ...]:
    """Return the addresses of the router in a subnet; the default is the first address of each range."""
    return subnet.gateways or tuple(network[1] for network in subnet.cidrs)
