"""Networks with objects of every kind: ``red`` and ``blue`` have equal ranges, ``green`` others and a gateway of its own."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from msgspec.structs import replace
from tests.unit.net.network_builders import build_networks, port, subnet, vpc

from calabash.model.addresses import Address
from calabash.model.network import (
    DedicatedLine,
    Direction,
    DnsRecord,
    Eip,
    GatewayKind,
    NatKind,
    NatRule,
    NetworkGateway,
    NetworkObject,
    NetworkRoute,
    Peering,
    Port,
    QosPolicy,
    SecurityGroup,
    SecurityRule,
    Subnet,
    Uplink,
    Vpc,
)
from calabash.model.network_services import (
    Backend,
    CheckKind,
    HealthCheck,
    Layer,
    LoadBalancer,
    ServiceEndpoint,
    TransportProtocol,
)
from calabash.net.ovn.translation.view import NetworkHosts
from calabash.net.store.networks import Networks

HOSTS = NetworkHosts(gateways=("g1", "g2"))
TCP = TransportProtocol.TCP
SPACES = (Vpc, Subnet, SecurityGroup, Port)


def base(name: str) -> tuple[NetworkObject, ...]:
    """Return a VPC with two subnets and four ports, with the same addresses for every name."""
    return (
        vpc(name, "10.0.0.0/16", "fd00::/56"),
        subnet(f"{name}/a", "10.0.1.0/24", "fd00::/64", served=True),
        subnet(f"{name}/b", "10.0.2.0/24"),
        QosPolicy(name=f"{name}/slow", egress_bits_per_s=100_000_000, ingress_bits_per_s=50_000_000),
        SecurityGroup(
            name=f"{name}/open",
            rules=(
                SecurityRule(
                    direction=Direction.INGRESS, protocol=TCP, ports=(8080, 8080), peer=ip_network("0.0.0.0/0")
                ),
                SecurityRule(direction=Direction.EGRESS, peer=ip_network("0.0.0.0/0")),
            ),
        ),
        port(f"{name}/a/web1", "10.0.1.11", "fd00::11", groups=(f"{name}/default", f"{name}/open")),
        port(f"{name}/a/web2", "10.0.1.12", "fd00::12", groups=(f"{name}/default", f"{name}/open")),
        port(f"{name}/b/db", "10.0.2.11", qos=f"{name}/slow"),
    )


def outside(name: str, last: int) -> tuple[NetworkObject, ...]:
    """Return a gateway and two outside addresses: 198.51.100.``last`` and the two after it."""
    return (
        NetworkGateway(name=f"{name}/out", uplink="ext", snat=True, address=_outside(last)),
        Eip(name=f"{name}/front", address=_outside(last + 1)),
        Eip(name=f"{name}/float", address=_outside(last + 2)),
        NatRule(
            name=f"{name}/ssh",
            kind=NatKind.DNAT,
            eip=f"{name}/front",
            port=f"{name}/a/web1",
            protocol=TCP,
            outside_number=2222,
            inside_number=22,
        ),
        NatRule(name=f"{name}/public", kind=NatKind.FIP, eip=f"{name}/float", port=f"{name}/b/db", distributed=True),
    )


def balanced(name: str, vip: str = "10.0.1.100", label: str = "web") -> LoadBalancer:
    return LoadBalancer(
        name=f"{name}/{label}",
        vip=ip_address(vip),
        vip_number=80,
        backends=tuple(Backend(port=f"{name}/a/web{number}", number=8080) for number in (1, 2)),
        check=HealthCheck(kind=CheckKind.TCP),
    )


def pair(subnet_name: str, mark: str, first: int) -> tuple[Port, ...]:
    """Return two managed ports and the virtual port between them."""
    names = [f"{subnet_name}/x-{mark}-{place}" for place in ("1", "2", "v")]
    parents = tuple(names[:2])
    two = [port(name, f"10.1.1.{first + place}") for place, name in enumerate(parents)]
    return (*two, replace(port(names[2], f"10.1.1.{first + 2}"), virtual_parents=parents))


def green() -> tuple[NetworkObject, ...]:
    nfv, proxies = pair("green/a", "nfv-out", 240), pair("green/a", "l7-shop", 230)
    return (
        vpc("green", "10.1.0.0/16"),
        subnet("green/a", "10.1.1.0/24"),
        port("green/a/one", "10.1.1.11"),
        *nfv,
        *proxies,
        NetworkGateway(
            name="green/out",
            kind=GatewayKind.NFV,
            uplink="ext",
            snat=True,
            address=_outside(40),
            ports=tuple(item.name for item in nfv),
        ),
        LoadBalancer(
            name="green/shop",
            vip=ip_address("10.1.1.232"),
            vip_number=443,
            backends=(Backend(port="green/a/one", number=8000),),
            layer=Layer.L7,
            certificate="shop",
            ports=tuple(item.name for item in proxies),
        ),
    )


def sample_tenants() -> Networks:
    uplink = Uplink(
        name="ext", cidr=ip_network("198.51.100.0/24"), gateway=ip_address("198.51.100.1"), vlan=7, number=1
    )
    services: tuple[NetworkObject, ...] = (
        uplink,
        *outside("red", 10),
        *outside("blue", 20),
        balanced("red"),
        balanced("red", "198.51.100.11", "front"),
        ServiceEndpoint(name="blue/models", source="red/web", vip=ip_address("10.0.1.150"), subnet="blue/a", number=1),
        Peering(name="red/green", number=1),
        Peering(name="green/red", number=1),
        NetworkRoute(name="red/hole", prefix=ip_network("10.77.0.0/16")),
        NetworkRoute(
            name="red/via",
            prefix=ip_network("10.78.0.0/16"),
            source=ip_network("10.0.2.0/24"),
            next_hop=ip_address("10.0.1.12"),
            priority=7,
        ),
        DedicatedLine(
            name="red/dc1",
            vlan=100,
            cidr=ip_network("192.0.2.0/29"),
            address=ip_address("192.0.2.1"),
            peer=ip_address("192.0.2.2"),
            routes=(ip_network("192.168.50.0/24"),),
            number=1,
        ),
        DnsRecord(name="red/db", host="db.internal", addresses=(ip_address("10.0.2.11"),)),
    )
    return networks_of(*base("red"), *base("blue"), *green(), *services)


def networks_of(*items: NetworkObject) -> Networks:
    """Return a collection of objects, of which only VPCs, subnets, groups and ports are completed."""
    made = build_networks(
        *(replace(item, qos="") if isinstance(item, Port) else item for item in items if isinstance(item, SPACES))
    )
    bounded = {item.name: item.qos for item in items if isinstance(item, Port)}
    spaces = (replace(item, qos=bounded[item.name]) if isinstance(item, Port) else item for item in made.items())
    return Networks.from_objects((*spaces, *(item for item in items if not isinstance(item, SPACES))), made.revision)


def _outside(last: int) -> Address:
    return ip_address(f"198.51.100.{last}")
