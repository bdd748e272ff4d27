"""Tenant networks: the nouns, as a user sets them and as the book of networks completes them.

A VPC is a tenant's own address space; subnets divide it, ports are where programs join it. All else says who may talk to
whom, how, and how fast. Names are paths: ``red`` a VPC, ``red/a`` a subnet of it, ``red/a/web1`` a port; what belongs to a
VPC and to no subnet is ``red/NAME``. What is left empty is allocated when the object is created and stays as it is then.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from calabash.model.addresses import Address, Network
from calabash.model.network_services import LoadBalancer, ServiceEndpoint, TransportProtocol

MTU_DEFAULT = 1400  # what is left of 1500 bytes of an underlay under Geneve over IPv6


class NetworkKind(StrEnum):
    """What an object of a network is; the word in the CLI, in YAML (``kind``) and in the API."""

    VPC = "vpc"
    SUBNET = "subnet"
    PORT = "port"
    SECURITY_GROUP = "sg"
    UPLINK = "uplink"
    GATEWAY = "gateway"
    EIP = "eip"
    NAT_RULE = "nat"
    LOAD_BALANCER = "lb"
    PEERING = "peer"
    SERVICE_ENDPOINT = "endpoint"
    ROUTE = "route"
    DEDICATED_LINE = "line"
    DNS_RECORD = "dns"
    QOS_POLICY = "qos"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vpc:
    """An address space of one tenant.

    Args:
        name: unique in the pool.
        tenant: who owns it; "" where the pool has no tenants.
        cidrs: where all its subnets lie; another VPC may have the same.
        mtu_bytes: of its ports.
        number: 1..65535, unique; of it are made MACs and transit addresses. 0: to be allocated.
    """

    name: str
    cidrs: tuple[Network, ...]
    tenant: str = ""
    mtu_bytes: int = MTU_DEFAULT
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Subnet:
    """A part of a VPC, of which ports get addresses: at most one range of each IP version.

    Args:
        name: ``VPC/SUBNET``.
        gateways: the router's address in each range; empty: the first of each.
        dhcp, dns: whether DHCP answers there, and DNS for the VPC's records and ports (``PORT.SUBNET.VPC.internal``).
        number: 1..65535, unique in the VPC; 0: to be allocated.
    """

    name: str
    cidrs: tuple[Network, ...]
    gateways: tuple[Address, ...] = ()
    dhcp: bool = False
    dns: bool = False
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """Where a program, a pod or a machine joins a subnet; what it sends with another address or MAC is dropped.

    Args:
        name: ``VPC/SUBNET/PORT``; the OVN port and the host's ``iface-id`` are called the same.
        addresses: one of each range of the subnet; empty: allocated.
        mac: empty: allocated.
        security_groups: names ``VPC/GROUP``; empty: the VPC's ``default``.
        qos: ``VPC/POLICY``, or "".
        virtual_parents: for an address that moves between ports (of a pair of load balancers): their names.
    """

    name: str
    addresses: tuple[Address, ...] = ()
    mac: str = ""
    security_groups: tuple[str, ...] = ()
    qos: str = ""
    virtual_parents: tuple[str, ...] = ()


class Direction(StrEnum):
    """As its ports see it: INGRESS comes to them."""

    INGRESS = "ingress"
    EGRESS = "egress"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityRule:
    """What a group lets through besides; answers to what was let through always pass.

    Args:
        ports: first and last, of the receiver; (0, 0) all, and what ANY and ICMP have.
        peer: who is at the other end, a range; None where ``peer_group`` says it. 0.0.0.0/0 and ::/0: anybody.
        peer_group: a group of the same VPC, ``VPC/GROUP``.
    """

    direction: Direction
    protocol: TransportProtocol = TransportProtocol.ANY
    ports: tuple[int, int] = (0, 0)
    peer: Network | None = None
    peer_group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityGroup:
    """Ports that are let talk alike; nothing passes that no rule lets through.

    Every VPC has ``VPC/default``, in which ports talk to each other and to anybody outside, and nobody else to them.
    """

    name: str
    rules: tuple[SecurityRule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Uplink:
    """A way out of the platform: one segment of the provider's network, which an administrator sets.

    Args:
        name: a label, without a VPC.
        physical: what hosts call it in ``ovn-bridge-mappings``.
        vlan: its tag on the wire, 0 none.
        cidr, gateway: its range, and the next hop in it.
        hosts: gateway hosts, the preferred first; empty: all that are gateway hosts.
        vpcs_max: most VPCs that leave by it; 0: as many as its range has addresses for gateways, at most 100.
        number: 1..255, unique; 0: to be allocated.
    """

    name: str
    cidr: Network
    gateway: Address
    physical: str = "ext"
    vlan: int = 0
    hosts: tuple[str, ...] = ()
    vpcs_max: int = 0
    number: int = 0


class GatewayKind(StrEnum):
    """OVN: in the switches of two gateway hosts. NFV: two replicas of a program with nftables."""

    OVN = "ovn"
    NFV = "nfv"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkGateway:
    """Where a VPC leaves for the outside; one VPC has at most one.

    Args:
        name: ``VPC/GATEWAY``.
        uplink: its name; "": the one with the fewest VPCs.
        snat: whether what leaves gets the gateway's address, so that ports without one of their own reach the outside.
        address: of the uplink's range; None: to be allocated.
        ports: of the NFV kind: its two replicas' ports inside the VPC, and the virtual one that moves between them; allocated.
    """

    name: str
    kind: GatewayKind = GatewayKind.OVN
    uplink: str = ""
    snat: bool = False
    address: Address | None = None
    ports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Eip:
    """An outside address that is a VPC's; ``VPC/EIP``. ``address`` None: allocated of the range of its gateway's uplink."""

    name: str
    address: Address | None = None


class NatKind(StrEnum):
    """DNAT: one outside port goes to one inside. FIP: an outside address is a port's, both ways."""

    DNAT = "dnat"
    FIP = "fip"


@dataclass(frozen=True, slots=True, kw_only=True)
class NatRule:
    """``VPC/RULE``: what comes to ``eip`` goes to ``port``.

    Args:
        eip: ``VPC/EIP``, or ``VPC/GATEWAY`` for a DNAT on the gateway's own address.
        port: ``VPC/SUBNET/PORT``.
        protocol, outside_number, inside_number: of DNAT: TCP or UDP, and the numbers; 0 and ANY of a FIP.
        distributed: of a FIP: translated on the port's own host.
    """

    name: str
    kind: NatKind
    eip: str
    port: str
    protocol: TransportProtocol = TransportProtocol.ANY
    outside_number: int = 0
    inside_number: int = 0
    distributed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Peering:
    """``VPC/PEER``: routes between two VPCs whose ranges do not overlap. It stands when both have asked for it.

    Args:
        name: ``red/green``: of ``red``, to ``green``.
        routes: ranges of the other that this one wants to reach; empty: all its subnets.
        number: 1..4095, the same at both ends; of it are made transit addresses. 0: to be allocated.
    """

    name: str
    routes: tuple[Network, ...] = ()
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRoute:
    """``VPC/ROUTE``: packets for ``prefix``, from ``source`` where it says one, go to ``next_hop``; None drops them.

    With ``source`` it is a policy route, which comes before all others; ``priority`` then orders them, the higher first.
    """

    name: str
    prefix: Network
    next_hop: Address | None = None
    source: Network | None = None
    priority: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class DedicatedLine:
    """``VPC/LINE``: a VLAN of the provider's network that is this VPC's alone, to a place of its tenant.

    Args:
        cidr, address, peer: the line's own range, the VPC's address in it, and the other end's.
        routes: ranges that are behind the other end.
        physical, hosts: as for an uplink.
        number: 1..4095, unique; 0: to be allocated.
    """

    name: str
    vlan: int
    cidr: Network
    address: Address
    peer: Address
    routes: tuple[Network, ...] = ()
    physical: str = "ext"
    hosts: tuple[str, ...] = ()
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DnsRecord:
    """``VPC/RECORD``: a name (``db.internal``) that DNS of the VPC's subnets answers, with these addresses."""

    name: str
    host: str
    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QosPolicy:
    """``VPC/POLICY``: most bits per second that each port with it sends and gets; 0: no bound."""

    name: str
    egress_bits_per_s: int = 0
    ingress_bits_per_s: int = 0


NetworkObject = (
    Vpc
    | Subnet
    | Port
    | SecurityGroup
    | Uplink
    | NetworkGateway
    | Eip
    | NatRule
    | LoadBalancer
    | Peering
    | ServiceEndpoint
    | NetworkRoute
    | DedicatedLine
    | DnsRecord
    | QosPolicy
)

KINDS: dict[type, NetworkKind] = {
    Vpc: NetworkKind.VPC,
    Subnet: NetworkKind.SUBNET,
    Port: NetworkKind.PORT,
    SecurityGroup: NetworkKind.SECURITY_GROUP,
    Uplink: NetworkKind.UPLINK,
    NetworkGateway: NetworkKind.GATEWAY,
    Eip: NetworkKind.EIP,
    NatRule: NetworkKind.NAT_RULE,
    LoadBalancer: NetworkKind.LOAD_BALANCER,
    Peering: NetworkKind.PEERING,
    ServiceEndpoint: NetworkKind.SERVICE_ENDPOINT,
    NetworkRoute: NetworkKind.ROUTE,
    DedicatedLine: NetworkKind.DEDICATED_LINE,
    DnsRecord: NetworkKind.DNS_RECORD,
    QosPolicy: NetworkKind.QOS_POLICY,
}
PATH_PARTS: dict[NetworkKind, int] = dict.fromkeys(NetworkKind, 2) | {
    NetworkKind.VPC: 1,
    NetworkKind.UPLINK: 1,
    NetworkKind.PORT: 3,
}


def kind_of(item: NetworkObject) -> NetworkKind:
    return KINDS[type(item)]


def vpc_of(name: str) -> str:
    """The VPC of an object's path."""
    return name.split("/", 1)[0]
