"""Objects of tenant networks: VPCs, subnets, ports, security groups, gateways, addresses and routes.

A VPC is a private address space of one tenant. Subnets divide it, and programs are connected to it by ports. The other objects
define which connections are allowed, their routes and their rates. Names are paths: ``red`` is a VPC, ``red/a`` one of its
subnets, ``red/a/web1`` a port. Other objects of a VPC are called ``red/NAME``. Fields that are left empty are allocated when
the object is created and do not change afterwards.
"""

from __future__ import annotations

from enum import StrEnum

from calabash.model.addresses import Address, Network
from calabash.model.network_services import LoadBalancer, ServiceEndpoint, TransportProtocol
from calabash.model.strict_types import Integer, Items, StrictStruct, Text

MTU_DEFAULT = 1400  # fits into an underlay MTU of 1500 bytes with Geneve over IPv6


class NetworkKind(StrEnum):
    """Kinds of network objects, as they are called in the CLI, in YAML (``kind``) and in the API."""

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


class Vpc(StrictStruct, frozen=True, kw_only=True):
    """VPC: a private address space of one tenant.

    Args:
        name: unique in the pool.
        tenant: the owner; "" where the pool has no tenants.
        cidrs: IP ranges that contain all its subnets; they may overlap the ranges of other VPCs.
        mtu_bytes: MTU of its ports.
        number: 1..65535, unique; MAC addresses and transit addresses are derived from it. 0: to be allocated.
    """

    name: Text
    cidrs: Items[Network]
    tenant: Text = ""
    mtu_bytes: Integer = MTU_DEFAULT
    number: Integer = 0


class Subnet(StrictStruct, frozen=True, kw_only=True):
    """Subnet of a VPC, from which ports get addresses. It has at most one range of each IP version.

    Args:
        name: ``VPC/SUBNET``.
        gateways: address of the router in each range; empty: the first address of each range.
        dhcp: enable DHCP.
        dns: enable DNS for the records of the VPC and for its ports (``PORT.SUBNET.VPC.internal``).
        number: 1..65535, unique in the VPC; 0: to be allocated.
    """

    name: Text
    cidrs: Items[Network]
    gateways: Items[Address] = ()
    dhcp: bool = False
    dns: bool = False
    number: Integer = 0


class Port(StrictStruct, frozen=True, kw_only=True):
    """Port: the connection of a program, a pod or a machine to a subnet. Packets with other source addresses are dropped.

    Args:
        name: ``VPC/SUBNET/PORT``; also the name of the OVN port and the ``iface-id`` on the host.
        addresses: one address of each range of the subnet; empty: to be allocated.
        mac: MAC address; "": to be allocated.
        security_groups: names ``VPC/GROUP``; empty: the VPC's ``default``.
        qos: ``VPC/POLICY``; "" for none.
        virtual_parents: for the virtual port of a pair of load balancers: the two ports between which its address moves.
    """

    name: Text
    addresses: Items[Address] = ()
    mac: Text = ""
    security_groups: Items[Text] = ()
    qos: Text = ""
    virtual_parents: Items[Text] = ()


class Direction(StrEnum):
    """Direction of traffic as seen from a port: INGRESS goes to the port, EGRESS comes from it."""

    INGRESS = "ingress"
    EGRESS = "egress"


class SecurityRule(StrictStruct, frozen=True, kw_only=True):
    """Rule that allows connections of the ports of a security group. Replies of allowed connections are always allowed.

    Args:
        ports: first and last port number of the receiver; (0, 0): all, and for ANY and ICMP.
        peer: IP range of the other end; None if ``peer_group`` is given. 0.0.0.0/0 and ::/0 match every address.
        peer_group: security group ``VPC/GROUP`` of the other end, in the same VPC; "" if ``peer`` is given.
    """

    direction: Direction
    protocol: TransportProtocol = TransportProtocol.ANY
    ports: tuple[Integer, Integer] = (0, 0)
    peer: Network | None = None
    peer_group: Text = ""


class SecurityGroup(StrictStruct, frozen=True, kw_only=True):
    """Security group: a set of ports with common rules. Connections that no rule allows are dropped.

    Every VPC has the group ``VPC/default``. It allows connections between its ports and connections from its ports to all other
    addresses, and no other connections to its ports.
    """

    name: Text
    rules: Items[SecurityRule] = ()


class Uplink(StrictStruct, frozen=True, kw_only=True):
    """Uplink: a segment of the provider's network, set by an administrator, that connects VPCs to outside networks.

    Args:
        name: a label, without a VPC.
        cidr: IP range of the segment.
        gateway: next hop in that range.
        physical: name of the physical network in ``ovn-bridge-mappings`` of the hosts.
        vlan: VLAN tag; 0 for none.
        hosts: gateway hosts in order of preference; empty: all gateway hosts.
        vpcs_max: most VPCs that use it; 0: as many as its range has addresses for gateways, at most 100.
        number: 1..255, unique; 0: to be allocated.
    """

    name: Text
    cidr: Network
    gateway: Address
    physical: Text = "ext"
    vlan: Integer = 0
    hosts: Items[Text] = ()
    vpcs_max: Integer = 0
    number: Integer = 0


class GatewayKind(StrEnum):
    """Implementations of gateways.

    OVN: the virtual switches of two gateway hosts. NFV: two replicas of a program with nftables.
    """

    OVN = "ovn"
    NFV = "nfv"


class NetworkGateway(StrictStruct, frozen=True, kw_only=True):
    """Gateway of a VPC to an uplink. A VPC has at most one.

    Args:
        name: ``VPC/GATEWAY``.
        uplink: name of the uplink; "": the uplink with the fewest VPCs.
        snat: replace the source addresses of outgoing packets by the gateway's address, so that ports without an outside
            address can reach outside networks.
        address: address in the range of the uplink; None: to be allocated.
        ports: NFV only: the ports of the two replicas in the VPC, and the virtual port that moves between them; allocated.
    """

    name: Text
    kind: GatewayKind = GatewayKind.OVN
    uplink: Text = ""
    snat: bool = False
    address: Address | None = None
    ports: Items[Text] = ()


class Eip(StrictStruct, frozen=True, kw_only=True):
    """Elastic IP ``VPC/EIP``: an outside address of a VPC.

    ``address`` None: allocated from the range of its gateway's uplink.
    """

    name: Text
    address: Address | None = None


class NatKind(StrEnum):
    """Kinds of NAT rules. DNAT: forward one outside port number. FIP: translate a whole outside address, in both directions."""

    DNAT = "dnat"
    FIP = "fip"


class NatRule(StrictStruct, frozen=True, kw_only=True):
    """NAT rule ``VPC/RULE``: forward packets for ``eip`` to ``port``.

    Args:
        eip: ``VPC/EIP``, or ``VPC/GATEWAY`` for a DNAT rule on the address of the gateway.
        port: ``VPC/SUBNET/PORT``.
        protocol: TCP or UDP for DNAT, ANY for FIP.
        outside_number, inside_number: port numbers for DNAT; 0 for FIP.
        distributed: FIP only: translate on the host of the port instead of on the gateway host.
    """

    name: Text
    kind: NatKind
    eip: Text
    port: Text
    protocol: TransportProtocol = TransportProtocol.ANY
    outside_number: Integer = 0
    inside_number: Integer = 0
    distributed: bool = False


class Peering(StrictStruct, frozen=True, kw_only=True):
    """Peering ``VPC/PEER``: routes between two VPCs whose ranges do not overlap. It is active if both VPCs have it.

    Args:
        name: ``red/green`` is the peering of VPC ``red`` with VPC ``green``.
        routes: ranges of the other VPC to reach; empty: all its subnets.
        number: 1..4095, the same at both ends; transit addresses are derived from it. 0: to be allocated.
    """

    name: Text
    routes: Items[Network] = ()
    number: Integer = 0


class NetworkRoute(StrictStruct, frozen=True, kw_only=True):
    """Route ``VPC/ROUTE``: send packets for ``prefix`` to ``next_hop``, or drop them if ``next_hop`` is None.

    Args:
        source: apply to packets from this range only. Such a policy route precedes all routes without a source.
        priority: order of policy routes, the highest first.
    """

    name: Text
    prefix: Network
    next_hop: Address | None = None
    source: Network | None = None
    priority: Integer = 100


class DedicatedLine(StrictStruct, frozen=True, kw_only=True):
    """Dedicated line ``VPC/LINE``: a VLAN of the provider's network that only this VPC uses, to a site of its tenant.

    Args:
        cidr: IP range of the line.
        address: address of the VPC in that range.
        peer: address of the other end.
        routes: ranges that are reached through the other end.
        physical, hosts: as for an uplink.
        number: 1..4095, unique; 0: to be allocated.
    """

    name: Text
    vlan: Integer
    cidr: Network
    address: Address
    peer: Address
    routes: Items[Network] = ()
    physical: Text = "ext"
    hosts: Items[Text] = ()
    number: Integer = 0


class DnsRecord(StrictStruct, frozen=True, kw_only=True):
    """DNS record ``VPC/RECORD``: the addresses of a host name (``db.internal``), answered in the VPC's subnets with DNS."""

    name: Text
    host: Text
    addresses: Items[Address]


class QosPolicy(StrictStruct, frozen=True, kw_only=True):
    """QoS policy ``VPC/POLICY``: most bits per second that each of its ports sends and receives; 0: no limit."""

    name: Text
    egress_bits_per_s: Integer = 0
    ingress_bits_per_s: Integer = 0


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
    """Return the name of the VPC in the path of an object."""
    return name.split("/", 1)[0]
