"""Networks with objects of every kind, most of them supported by Kube-OVN."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

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
from calabash.net.checks.subnets import default_group
from calabash.net.objects.collection import NetworkObjects

ANYBODY_4, ANYBODY_6 = ip_network("0.0.0.0/0"), ip_network("::/0")
TCP = TransportProtocol.TCP


def _space(name: str, number: int) -> list[NetworkObject]:
    mac = f"0a:00:0{number}:00:00:0"
    return [
        Vpc(
            name=name,
            cidrs=(ip_network(f"10.{number}.0.0/16"), ip_network(f"fd00:{number}::/56")),
            tenant=name,
            number=number,
        ),
        default_group(name),
        SecurityGroup(
            name=f"{name}/web",
            rules=(
                SecurityRule(direction=Direction.INGRESS, protocol=TCP, ports=(80, 443), peer=ANYBODY_4),
                SecurityRule(direction=Direction.INGRESS, protocol=TransportProtocol.ICMP, peer=ANYBODY_6),
                SecurityRule(direction=Direction.EGRESS, protocol=TransportProtocol.UDP, peer_group=f"{name}/default"),
            ),
        ),
        Subnet(
            name=f"{name}/a",
            cidrs=(ip_network(f"10.{number}.1.0/24"), ip_network(f"fd00:{number}::/64")),
            gateways=(ip_address(f"10.{number}.1.1"), ip_address(f"fd00:{number}::1")),
            dhcp=True,
            dns=True,
            number=1,
        ),
        QosPolicy(name=f"{name}/slow", egress_bits_per_s=100_000_000, ingress_bits_per_s=20_000_000),
        *(
            Port(
                name=f"{name}/a/web{n}",
                addresses=(ip_address(f"10.{number}.1.1{n}"), ip_address(f"fd00:{number}::1{n}")),
                mac=f"{mac}{n}",
                security_groups=(f"{name}/default", f"{name}/web"),
                qos=f"{name}/slow",
            )
            for n in (1, 2)
        ),
        Port(
            name=f"{name}/a/shared",
            addresses=(ip_address(f"10.{number}.1.99"),),
            mac=f"{mac}3",
            security_groups=(f"{name}/default", f"{name}/web"),
            virtual_parents=(f"{name}/a/web1", f"{name}/a/web2"),
        ),
    ]


def _services(name: str, number: int) -> list[NetworkObject]:
    def backends(*numbers: int) -> tuple[Backend, ...]:
        return tuple(Backend(port=f"{name}/a/web{n}", number=at) for n, at in enumerate(numbers, 1))

    return [
        Eip(name=f"{name}/e", address=ip_address(f"198.51.100.{number}1")),
        NatRule(name=f"{name}/f", kind=NatKind.FIP, eip=f"{name}/e", port=f"{name}/a/web1", distributed=True),
        NatRule(
            name=f"{name}/d",
            kind=NatKind.DNAT,
            eip=f"{name}/out",
            port=f"{name}/a/web2",
            protocol=TCP,
            outside_number=80,
            inside_number=8080,
        ),
        LoadBalancer(
            name=f"{name}/web", vip=ip_address(f"10.{number}.1.100"), vip_number=80, backends=backends(8080, 8080)
        ),
        LoadBalancer(
            name=f"{name}/tls",
            vip=ip_address(f"10.{number}.1.101"),
            vip_number=443,
            backends=backends(8080),
            layer=Layer.L7,
            certificate="cert",
            check=HealthCheck(kind=CheckKind.HTTP, path="/"),
        ),
        LoadBalancer(
            name=f"{name}/mixed", vip=ip_address(f"10.{number}.1.102"), vip_number=80, backends=backends(80, 81)
        ),
        NetworkRoute(name=f"{name}/r", prefix=ip_network("192.0.2.0/24"), next_hop=ip_address(f"10.{number}.1.11")),
        NetworkRoute(name=f"{name}/drop", prefix=ip_network("192.0.2.0/25")),
        NetworkRoute(
            name=f"{name}/no", prefix=ip_network("203.0.113.0/24"), source=ip_network(f"10.{number}.1.0/28"), priority=7
        ),
        DedicatedLine(
            name=f"{name}/dc1",
            vlan=100 + number,
            cidr=ip_network(f"172.20.{number}.0/30"),
            address=ip_address(f"172.20.{number}.1"),
            peer=ip_address(f"172.20.{number}.2"),
            routes=(ip_network(f"172.21.{number}.0/24"),),
            number=number,
        ),
        DnsRecord(name=f"{name}/db", host="db.internal", addresses=(ip_address(f"10.{number}.1.11"),)),
    ]


def every_network() -> NetworkObjects:
    """Return two peered VPCs: ``red`` has an OVN gateway, ``blue`` an NFV gateway."""
    uplink = Uplink(
        name="ext",
        cidr=ip_network("198.51.100.0/24"),
        gateway=ip_address("198.51.100.1"),
        vlan=7,
        number=1,
        hosts=("g1",),
    )
    inside = Port(
        name="blue/a/x-out",
        addresses=(ip_address("10.2.1.5"),),
        mac="0a:00:02:00:00:09",
        security_groups=("blue/default",),
    )
    items: list[NetworkObject] = [
        uplink,
        *_space("red", 1),
        NetworkGateway(name="red/out", uplink="ext", snat=True, address=ip_address("198.51.100.7")),
        *_services("red", 1),
        *_space("blue", 2),
        inside,
        NetworkGateway(
            name="blue/out",
            kind=GatewayKind.NFV,
            uplink="ext",
            snat=True,
            address=ip_address("198.51.100.8"),
            ports=(inside.name,),
        ),
        *_services("blue", 2),
        Peering(name="red/blue", number=1),
        Peering(name="blue/red", number=1, routes=(ip_network("10.1.1.0/24"),)),
        Peering(name="red/green", number=2),
        ServiceEndpoint(name="blue/models", source="red/web", vip=ip_address("10.2.1.120"), subnet="blue/a", number=1),
    ]
    return NetworkObjects.from_objects(items, 1)
