"""Names and addresses that the rows of OVN and the hosts agree on, for pairs inside tenant networks."""

from __future__ import annotations

from calabash.model.errors import CalabashError
from calabash.model.network import GatewayKind, NetworkGateway, vpc_of
from calabash.model.network_services import Layer, LoadBalancer

RANKS = (1, 2)
_PAIR_PORTS = 3


def outside_port(gateway: str, rank: int) -> str:
    """What OVN calls a replica's port in the uplink's switch; a VPC has one gateway."""
    return f"{vpc_of(gateway)}:nfv:{rank}"


def outside_mac(vpc_number: int, rank: int) -> str:
    """Of that port."""
    return f"0e:10:{vpc_number >> 8:02x}:{vpc_number & 255:02x}:00:{rank:02x}"


def is_pair(item: NetworkGateway | LoadBalancer) -> bool:
    """Whether it is carried out by a pair of appliances rather than by OVN."""
    return item.kind is GatewayKind.NFV if isinstance(item, NetworkGateway) else item.layer is Layer.L7


def pair_ports(item: NetworkGateway | LoadBalancer) -> tuple[str, str, str]:
    """The ports of the two replicas, and the virtual one between them. Raises CalabashError where they are not allocated."""
    if len(item.ports) != _PAIR_PORTS:
        raise CalabashError(f"{item.name} has {len(item.ports)} ports of its own, not {_PAIR_PORTS}")
    first, second, virtual = item.ports
    return first, second, virtual
