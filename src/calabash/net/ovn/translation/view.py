"""What a VPC's rows are made of: its objects, those of others that it refers to, and the hosts that are gateways."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from calabash.model.addresses import Address, Network
from calabash.model.network import NetworkObject, Port, Subnet, Vpc
from calabash.net.objects.backends import NONE_CLOSED, ClosedBackends
from calabash.net.objects.collection import NetworkObjects, VpcObjects

PRIORITY_MAX = 100  # of gateway hosts, the first's
T = TypeVar("T", bound=NetworkObject)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkHosts:
    """Names of the hosts (``system-id``) through which networks reach the outside, whether they live or not.

    Args:
        resting: those of them that come last, in this order: a host that was lost and returned takes nothing back before it has
            been well for some time.
    """

    gateways: tuple[str, ...] = ()
    resting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One VPC in the book of all, and what is known of hosts and of the backends of load balancers."""

    networks: NetworkObjects
    vpc: Vpc
    hosts: NetworkHosts
    closed: ClosedBackends = NONE_CLOSED

    @property
    def own(self) -> VpcObjects:
        return self.networks.of_vpc(self.vpc.name)

    def all(self, of: type[T]) -> Mapping[str, T]:
        """Its objects of one class, by name."""
        return self.own.all(of)

    def subnet_of(self, port: Port) -> Subnet:
        return self.all(Subnet)[port.name.rsplit("/", 1)[0]]

    def priorities(self, wanted: tuple[str, ...], number: int) -> Iterator[tuple[str, int]]:
        """Gateway hosts with their priority: those that are wanted in their order, else all, in an order of the number's.

        Who is first takes the traffic while it lives, so that a number of one's own spreads networks over hosts. Each host
        has a weight for each number (rendezvous hashing), so that one more host changes the order of no two others.
        """
        hosts = wanted or sorted(self.hosts.gateways, key=lambda host: _weight(number, host))
        last = {host: place for place, host in enumerate(self.hosts.resting, 1)}
        for place, host in enumerate(sorted(hosts, key=lambda host: last.get(host, 0))):
            yield host, PRIORITY_MAX - place


def _weight(number: int, host: str) -> bytes:
    return hashlib.blake2b(f"{host}/{number}".encode(), digest_size=8).digest()


def of_version(networks: Iterable[Network], version: int) -> tuple[Network, ...]:
    return tuple(network for network in networks if network.version == version)


def one_of(networks: Iterable[Network | Address]) -> str:
    """As the right side of ``==`` in an expression: ``{10.0.0.0/16, 10.2.0.0/16}``."""
    return "{" + ", ".join(sorted(str(network) for network in networks)) + "}"


def of_one_version(addresses: Iterable[Address], version: int) -> Address | None:
    """The first of a version."""
    return next((address for address in addresses if address.version == version), None)


def socket_name(address: Address, number: int) -> str:
    """``10.0.0.7:80``, ``[fd00::7]:80``."""
    return f"[{address}]:{number}" if address.version == 6 else f"{address}:{number}"


def gateways_of(subnet: Subnet) -> tuple[Address, ...]:
    """The router's address in each range: where none is set, the first."""
    return subnet.gateways or tuple(network[1] for network in subnet.cidrs)
