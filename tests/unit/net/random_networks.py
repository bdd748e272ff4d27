"""Random changes of a store of networks: most are like those of users, some must be refused.

Names and ranges are few, so that changes interact: objects are updated, deleted while in use, and request values in use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_address, ip_network
from random import Random

from calabash.model.addresses import Address, Network
from calabash.model.errors import CalabashError
from calabash.model.network import (
    DedicatedLine,
    Direction,
    DnsRecord,
    Eip,
    GatewayKind,
    NatKind,
    NatRule,
    NetworkGateway,
    NetworkKind,
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
from calabash.net.objects.collection import SHARED
from calabash.net.store.networks import Networks

VPC_RANGES = ("10.0.0.0/16", "10.0.0.0/16", "10.1.0.0/16", "10.2.0.0/16", "172.16.0.0/20")
TCP, UDP, ICMP = TransportProtocol.TCP, TransportProtocol.UDP, TransportProtocol.ICMP


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomChange:
    """Object to put, or name to delete; a VPC is deleted with its contents."""

    put: NetworkObject | None = None
    kind: NetworkKind = NetworkKind.VPC
    name: str = ""
    cascade: bool = False

    def applied(self, networks: Networks) -> Networks:
        """Return the store after the change. Raises CalabashError if it is refused."""
        if self.put is not None:
            return networks.put(self.put)[0]
        return networks.remove(self.kind, self.name, cascade=self.cascade)


class RandomNetworks:
    """Generator of changes, deterministic for a seed and stores.

    Args:
        vpcs: number of different names of VPCs.
        removing: fraction of changes that delete.
    """

    def __init__(self, seed: int, *, vpcs: int = 6, removing: float = 0.25) -> None:
        self._random = Random(seed)
        self._vpcs = tuple(f"v{number}" for number in range(vpcs))
        self._removing = removing
        self._makers: dict[Callable[[Networks, str], NetworkObject], int] = {
            self._vpc: 4,
            self._subnet: 6,
            self._port: 14,
            self._group: 4,
            self._uplink: 2,
            self._gateway: 4,
            self._eip: 3,
            self._nat: 3,
            self._balancer: 5,
            self._peering: 4,
            self._endpoint: 3,
            self._route: 3,
            self._line: 2,
            self._record: 2,
            self._qos: 2,
        }

    def change(self, networks: Networks) -> RandomChange:
        """Return the next change. The store may refuse it."""
        if networks.vpcs and self._random.random() < self._removing:
            return self._removal(networks)
        (maker,) = self._random.choices(tuple(self._makers), tuple(self._makers.values()))
        known = [vpc for vpc in networks.vpcs if vpc != SHARED]
        vpcs = known if known and maker != self._vpc and self._maybe(0.9) else self._vpcs
        return RandomChange(put=maker(networks, self._random.choice(vpcs)))

    def made(self, networks: Networks, changes: int) -> Networks:
        """Return the store after ``changes`` changes; refused ones change nothing."""
        for _ in range(changes):
            try:
                networks = self.change(networks).applied(networks)
            except CalabashError:
                continue
        return networks

    def _removal(self, networks: Networks) -> RandomChange:
        kind = self._random.choice(tuple(NetworkKind))
        items = list(networks.items(kind))
        if not items:
            return RandomChange(kind=kind, name="v0" if kind is NetworkKind.VPC else "v0/none")
        cascade = kind is NetworkKind.VPC and self._random.random() < 0.3
        return RandomChange(kind=kind, name=self._random.choice(items).name, cascade=cascade)

    def _label(self, letters: str) -> str:
        return self._random.choice(letters)

    def _maybe(self, share: float = 0.5) -> bool:
        return self._random.random() < share

    def _ranges(self, networks: Networks, vpc: str) -> tuple[Network, ...]:
        found = networks.find(Vpc, vpc)
        return found.cidrs if found else (ip_network("10.0.0.0/16"),)

    def _in(self, network: Network, most: int = 12) -> Address:
        return network[self._random.randrange(min(most, network.num_addresses))]

    def _ports(self, networks: Networks, vpc: str) -> list[str]:
        return list(networks.of_vpc(vpc).all(Port)) or [f"{vpc}/a/none"]

    def _subnet_range(self, networks: Networks, vpc: str) -> Network:
        subnets = list(networks.of_vpc(vpc).all(Subnet).values())
        return self._random.choice(self._random.choice(subnets).cidrs) if subnets else ip_network("10.0.1.0/24")

    def _vpc(self, _networks: Networks, vpc: str) -> Vpc:
        number = int(vpc[1:])
        cidrs: tuple[Network, ...] = (ip_network(VPC_RANGES[number % len(VPC_RANGES)]),)
        if self._maybe(0.3):
            cidrs += (ip_network(f"fd00:0:0:{number}00::/56"),)
        return Vpc(name=vpc, cidrs=cidrs, tenant=f"t{number % 3}", mtu_bytes=self._random.choice((1400, 8900)))

    def _subnet(self, networks: Networks, vpc: str) -> Subnet:
        ranges = self._ranges(networks, vpc)
        inside = ranges[0]
        first = inside.network_address + self._random.randrange(4) * 256
        cidrs: tuple[Network, ...] = (ip_network(f"{first}/{self._random.choice((24, 24, 28, 29))}"),)
        if len(ranges) > 1 and self._maybe():
            cidrs += (ip_network(f"{ranges[1][self._random.randrange(4) << 64]}/64"),)
        gateways = (cidrs[0][-2],) if self._maybe(0.2) else ()
        return Subnet(
            name=f"{vpc}/{self._label('abcd')}", cidrs=cidrs, gateways=gateways, dhcp=self._maybe(), dns=self._maybe()
        )

    def _port(self, networks: Networks, vpc: str) -> Port:
        objects = networks.of_vpc(vpc)
        subnets = list(objects.all(Subnet)) or [f"{vpc}/a"]
        subnet = self._random.choice(subnets)
        addresses = (self._in(self._subnet_range(networks, vpc)),) if self._maybe(0.3) else ()
        groups = (
            tuple(self._random.sample(sorted(objects.all(SecurityGroup)), 1))
            if self._maybe(0.4) and objects.kinds
            else ()
        )
        policies = list(objects.all(QosPolicy))
        siblings = [name for name in objects.all(Port) if name.startswith(f"{subnet}/")]
        return Port(
            name=f"{subnet}/p{self._random.randrange(8)}",
            addresses=addresses,
            mac=f"0a:bb:00:00:00:0{self._random.randrange(1, 8)}" if self._maybe(0.1) else "",
            security_groups=groups,
            qos=self._random.choice(policies) if policies and self._maybe(0.3) else "",
            virtual_parents=tuple(siblings[:2]) if siblings and self._maybe(0.1) else (),
        )

    def _group(self, networks: Networks, vpc: str) -> SecurityGroup:
        groups = [*networks.of_vpc(vpc).all(SecurityGroup), f"{vpc}/g"]
        rules = []
        for number in range(self._random.randrange(4)):
            protocol = self._random.choice((TCP, UDP, ICMP))
            ports = (80 + number, 90 + number) if protocol is not ICMP else (0, 0)
            direction = self._random.choice(tuple(Direction))
            if self._maybe():
                rules.append(
                    SecurityRule(
                        direction=direction, protocol=protocol, ports=ports, peer_group=self._random.choice(groups)
                    )
                )
            else:
                peer = ip_network(self._random.choice(("0.0.0.0/0", "::/0", "10.0.1.0/24")))
                rules.append(SecurityRule(direction=direction, protocol=protocol, ports=ports, peer=peer))
        return SecurityGroup(name=f"{vpc}/{self._random.choice(('default', 'g', 'h'))}", rules=tuple(rules))

    def _uplink(self, _networks: Networks, _vpc: str) -> Uplink:
        number = self._random.randrange(3)
        return Uplink(
            name=f"up{number}",
            cidr=ip_network(f"198.51.100.{number * 32}/27"),
            gateway=ip_address(f"198.51.100.{number * 32 + 1}"),
            vlan=self._random.choice((number, number, 100)),
            vpcs_max=self._random.choice((0, 1, 2, 30)),
        )

    def _gateway(self, networks: Networks, vpc: str) -> NetworkGateway:
        uplinks = list(networks.uplinks())
        return NetworkGateway(
            name=f"{vpc}/{self._random.choice(('out', 'out', 'out2'))}",
            kind=GatewayKind.NFV if vpc == "v1" else GatewayKind.OVN,
            uplink=self._random.choice(uplinks) if uplinks and self._maybe(0.3) else "",
            snat=self._maybe(),
        )

    def _eip(self, _networks: Networks, vpc: str) -> Eip:
        address = IPv4Address(f"198.51.100.{self._random.randrange(96)}") if self._maybe(0.3) else None
        return Eip(name=f"{vpc}/e{self._random.randrange(3)}", address=address)

    def _nat(self, networks: Networks, vpc: str) -> NatRule:
        objects = networks.of_vpc(vpc)
        eips = [*objects.all(Eip), *objects.all(NetworkGateway)] or [f"{vpc}/none"]
        eip, port = self._random.choice(eips), self._random.choice(self._ports(networks, vpc))
        name = f"{vpc}/n{self._random.randrange(3)}"
        if self._maybe(0.4):
            return NatRule(name=name, kind=NatKind.FIP, eip=eip, port=port, distributed=self._maybe())
        return NatRule(
            name=name,
            kind=NatKind.DNAT,
            eip=eip,
            port=port,
            protocol=self._random.choice((TCP, UDP)),
            outside_number=self._random.choice((80, 443)),
            inside_number=8080,
        )

    def _balancer(self, networks: Networks, vpc: str) -> LoadBalancer:
        layer = Layer.L7 if self._maybe(0.25) else Layer.L4
        eips = [eip.address for eip in networks.of_vpc(vpc).all(Eip).values() if eip.address]
        vip = self._random.choice(eips) if eips and self._maybe(0.2) else self._in(self._subnet_range(networks, vpc), 8)
        backends = tuple(Backend(port=port, number=8080) for port in self._random.sample(self._ports(networks, vpc), 1))
        return LoadBalancer(
            name=f"{vpc}/{self._label('wxyz')}",
            vip=vip,
            vip_number=self._random.choice((80, 443)),
            backends=backends,
            layer=layer,
            check=HealthCheck(kind=CheckKind.TCP if self._maybe() else CheckKind.NONE),
            offered_to=tuple(self._random.sample(("t0", "t1", "t2", "*"), self._random.randrange(3))),
        )

    def _peering(self, networks: Networks, vpc: str) -> Peering:
        other = self._random.choice(self._vpcs)
        routes = self._ranges(networks, other)[:1] if self._maybe(0.3) else ()
        return Peering(name=f"{vpc}/{other}", routes=routes)

    def _endpoint(self, networks: Networks, vpc: str) -> ServiceEndpoint:
        balancers = [item.name for item in networks.all(LoadBalancer)] or ["v0/w"]
        return ServiceEndpoint(name=f"{vpc}/s{self._random.randrange(3)}", source=self._random.choice(balancers))

    def _route(self, networks: Networks, vpc: str) -> NetworkRoute:
        prefixes = ("0.0.0.0/0", "192.168.0.0/24", "192.168.8.0/21", "203.0.113.0/24")
        return NetworkRoute(
            name=f"{vpc}/r{self._random.randrange(3)}",
            prefix=ip_network(self._random.choice(prefixes)),
            next_hop=self._in(self._subnet_range(networks, vpc)) if self._maybe(0.8) else None,
            source=ip_network("10.0.1.0/24") if self._maybe(0.3) else None,
            priority=self._random.choice((100, 200)),
        )

    def _line(self, _networks: Networks, vpc: str) -> DedicatedLine:
        number = self._random.randrange(4)
        return DedicatedLine(
            name=f"{vpc}/dc{number % 2}",
            vlan=100 + number,
            cidr=ip_network(f"192.168.5{number}.0/30"),
            address=ip_address(f"192.168.5{number}.1"),
            peer=ip_address(f"192.168.5{number}.2"),
            routes=(ip_network(f"192.168.{60 + number}.0/24"),) if self._maybe() else (),
        )

    def _record(self, _networks: Networks, vpc: str) -> DnsRecord:
        number = self._random.randrange(3)
        return DnsRecord(name=f"{vpc}/d{number}", host=f"db{number}.internal", addresses=(ip_address("10.0.1.77"),))

    def _qos(self, _networks: Networks, vpc: str) -> QosPolicy:
        return QosPolicy(
            name=f"{vpc}/q{self._random.randrange(2)}", egress_bits_per_s=self._random.choice((0, 10**8, 10**9))
        )
