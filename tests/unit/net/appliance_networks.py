"""Networks with pairs of appliances, in which everything is allocated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network

from msgspec.structs import replace

from calabash.model.errors import CalabashError
from calabash.model.network import (
    Eip,
    GatewayKind,
    NatKind,
    NatRule,
    NetworkGateway,
    NetworkObject,
    Port,
    Subnet,
    Uplink,
    Vpc,
)
from calabash.model.network_services import Backend, CheckKind, HealthCheck, Layer, LoadBalancer, TransportProtocol
from calabash.net.appliances.model import Replica
from calabash.net.appliances.replicas import replicas_of
from calabash.net.objects.collection import NetworkObjects

UPLINK = Uplink(name="up", cidr=IPv4Network("198.51.100.0/24"), gateway=IPv4Address("198.51.100.1"), number=1)


def tenant(vpc: str, number: int, *, check: HealthCheck | None = None, certificate: str = "") -> list[NetworkObject]:
    """Return a VPC with subnet 10.0.1.0/24, a server, a gateway at 198.51.100.(10 * number), an EIP and an L7 load balancer."""
    subnet, base = f"{vpc}/a", 10 * number
    port = Port(name="", addresses=(IPv4Address("10.0.1.11"),), mac=f"0a:00:{number:02x}:00:00:0b")

    def more(label: str, last: int, *parents: str) -> Port:
        address, mac = IPv4Address(f"10.0.1.{last}"), f"0a:00:{number:02x}:00:00:{last:02x}"
        return replace(port, name=f"{subnet}/{label}", addresses=(address,), mac=mac, virtual_parents=parents)

    nfv, lb = (tuple(f"{subnet}/x-{what}-{part}" for part in ("1", "2", "v")) for what in ("nfv", "lb"))
    return [
        Vpc(name=vpc, cidrs=(IPv4Network("10.0.0.0/16"),), number=number),
        Subnet(name=subnet, cidrs=(IPv4Network("10.0.1.0/24"),), gateways=(IPv4Address("10.0.1.1"),), number=1),
        more("web1", 11),
        more("web2", 12),
        *(more(name.rpartition("/")[2], 200 + at, *(nfv[:2] if at == 2 else ())) for at, name in enumerate(nfv)),
        *(more(name.rpartition("/")[2], 210 + at, *(lb[:2] if at == 2 else ())) for at, name in enumerate(lb)),
        NetworkGateway(
            name=f"{vpc}/out",
            kind=GatewayKind.NFV,
            uplink=UPLINK.name,
            snat=True,
            address=IPv4Address(f"198.51.100.{base}"),
            ports=nfv,
        ),
        Eip(name=f"{vpc}/web", address=IPv4Address(f"198.51.100.{base + 1}")),
        Eip(name=f"{vpc}/own", address=IPv4Address(f"198.51.100.{base + 2}")),
        NatRule(
            name=f"{vpc}/http",
            kind=NatKind.DNAT,
            eip=f"{vpc}/web",
            port=f"{subnet}/web1",
            protocol=TransportProtocol.TCP,
            outside_number=80,
            inside_number=8080,
        ),
        NatRule(name=f"{vpc}/fip", kind=NatKind.FIP, eip=f"{vpc}/own", port=f"{subnet}/web2"),
        LoadBalancer(
            name=f"{vpc}/lb",
            vip=IPv4Address("10.0.1.212"),
            vip_number=443 if certificate else 80,
            backends=(Backend(port=f"{subnet}/web1", number=8080), Backend(port=f"{subnet}/web2", number=8080)),
            check=check or HealthCheck(kind=CheckKind.HTTP, path="/healthz", interval_s=0.5, failures=2),
            layer=Layer.L7,
            certificate=certificate,
            ports=lb,
        ),
    ]


def build_networks(*tenants: list[NetworkObject]) -> NetworkObjects:
    return NetworkObjects.from_objects([UPLINK, *(item for items in tenants for item in items)], 1)


def replicas(networks: NetworkObjects, closed: Sequence[IPv4Network] = ()) -> Iterator[Replica]:
    """Yield the replicas of all gateways and load balancers, except of those for which ``replicas_of`` raises an error."""
    items: list[NetworkGateway | LoadBalancer] = [*networks.all(NetworkGateway), *networks.all(LoadBalancer)]
    for item in items:
        with contextlib.suppress(CalabashError):
            yield from replicas_of(networks, item, closed)
