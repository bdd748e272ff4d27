"""Names and MACs of replicas. The rows of OVN and the interfaces on the hosts must use the same ones."""

from __future__ import annotations

from calabash.model.errors import CalabashError
from calabash.model.network import GatewayKind, NetworkGateway, vpc_of
from calabash.model.network_services import Layer, LoadBalancer

RANKS = (1, 2)
_PAIR_PORTS = 3


def outside_port(gateway: str, rank: int) -> str:
    """Return the name of the OVN port by which a replica of an NFV gateway is joined to the switch of the uplink.

    The name has only the VPC and the rank (1 or 2) of the replica, because a VPC has one gateway.
    """
    return f"{vpc_of(gateway)}:nfv:{rank}"


def outside_mac(vpc_number: int, rank: int) -> str:
    """Return the MAC of the port ``outside_port`` of a VPC's replica."""
    return f"0e:10:{vpc_number >> 8:02x}:{vpc_number & 255:02x}:00:{rank:02x}"


def is_pair(item: NetworkGateway | LoadBalancer) -> bool:
    """Return True if the object is implemented by a pair of appliances rather than by OVN."""
    return item.kind is GatewayKind.NFV if isinstance(item, NetworkGateway) else item.layer is Layer.L7


def pair_ports(item: NetworkGateway | LoadBalancer) -> tuple[str, str, str]:
    """Return the names of the ports of the two replicas, and of the virtual port whose address moves between them.

    Raises CalabashError if these ports were not created yet.
    """
    if len(item.ports) != _PAIR_PORTS:
        raise CalabashError(f"{item.name} has {len(item.ports)} managed ports, not {_PAIR_PORTS}")
    first, second, virtual = item.ports
    return first, second, virtual
