"""Types of appliances: replicas of NFV gateways and of L7 load balancers, and what a replica needs on its host.

Both kinds are pairs. The active replica has the virtual address of the VPC and receives all traffic; keepalived elects it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from calabash.model.addresses import Address
from calabash.model.network_services import HealthCheck, TransportProtocol

INSIDE, OUTSIDE = "in0", "out0"  # interfaces in the namespace of a replica


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceInterface:
    """One network interface of a replica.

    Args:
        device: name of the interface in the replica's namespace.
        port: logical port of OVN to which the interface is bound (``iface-id`` on the host's switch).
        addresses: fixed addresses with prefix lengths, such as ``10.0.1.5/24``; not the addresses that move between the
            replicas.
        routes: pairs of a destination range and its next hop, reached through this interface.
    """

    device: str
    port: str
    mac: str
    addresses: tuple[str, ...]
    mtu_bytes: int
    routes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PairMember:
    """Position of a replica in its pair, and its addresses.

    Args:
        name: the port of the replica, ``VPC/SUBNET/x-…``, which is also the name of the replica.
        rank: 1 or 2; distinguishes the two replicas.
        number: number of the VPC.
        own: address of the replica in the subnet.
        peer: address of the other replica.
        prefix: prefix length of the subnet.
        router: address of the router of the subnet.
        virtual: the address that moves between the replicas.
    """

    name: str
    rank: int
    number: int
    mac: str
    mtu_bytes: int
    own: Address
    peer: Address
    prefix: int
    router: Address
    virtual: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """Translation between an outside address and the address of a port in the VPC.

    With protocol TCP or UDP (DNAT), connections to port number ``outside_number`` of the outside address go to port
    number ``inside_number`` of the inside address. With protocol ANY (FIP, a floating address), all packets are
    translated, in both directions, and the port numbers are 0.
    """

    outside: IPv4Address
    inside: IPv4Address
    protocol: TransportProtocol = TransportProtocol.ANY
    outside_number: int = 0
    inside_number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NfvReplica:
    """Replica of an NFV gateway.

    Args:
        member: position in the pair, and the addresses inside the VPC.
        gateway: name of the gateway, ``VPC/GATEWAY``.
        ranges: address ranges of the VPC.
        closed: address ranges of the platform, which the VPC must not reach.
        outside_port, outside_mac: OVN port and MAC of the replica in the network of the uplink.
        address: outside address of the gateway.
        outside_prefix: prefix length of the uplink's range.
        outside_router: provider's router, the next hop to the outside.
        addresses: further outside addresses (EIPs) of the VPC.
        snat: if True, the source of outgoing packets is translated to ``address`` unless the port has a floating
            address.
        translations: NAT rules of the VPC.
    """

    member: PairMember
    gateway: str
    ranges: tuple[IPv4Network, ...]
    closed: tuple[IPv4Network, ...]
    outside_port: str
    outside_mac: str
    address: IPv4Address
    outside_prefix: int
    outside_router: IPv4Address
    addresses: tuple[IPv4Address, ...]
    snat: bool
    translations: tuple[Translation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerReplica:
    """Replica of an L7 load balancer.

    Args:
        member: position in the pair, and the addresses inside the VPC.
        balancer: name of the load balancer, ``VPC/LB``.
        number: TCP port number on which it listens at ``member.virtual``.
        targets: backends, each as ``SUBNET.PORT``, address and port number.
        check: health check of the backends.
        certificate: name of the certificate for TLS termination; "" for plain HTTP.
    """

    member: PairMember
    balancer: str
    number: int
    targets: tuple[tuple[str, Address, int], ...]
    check: HealthCheck
    certificate: str


Replica = NfvReplica | BalancerReplica


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceProgram:
    """Program that runs permanently in a replica.

    Args:
        name: name of the executable.
        file: name of its configuration file in ``Appliance.files``. Running processes of the program are found by this
            file in their command lines.
        arguments: arguments with which the program runs permanently.
        check: arguments with which the program only checks the configuration; () if it has no such mode.
        reload: signal that makes the program reload its configuration, such as "HUP"; "" if it must be restarted.
        leaves: files that the program leaves behind when it is killed. They are deleted before the program is started
            again, because they would prevent the start.
        waits: True to start the program only after packets pass at the replica's ports. keepalived would otherwise
            receive no advertisements, and both replicas would become active.
    """

    name: str
    file: str
    arguments: tuple[str, ...]
    check: tuple[str, ...] = ()
    reload: str = ""
    leaves: tuple[str, ...] = ()
    waits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Appliance:
    """Namespace contents of one replica: interfaces, settings, files and programs.

    Args:
        name: name of the replica.
        kind, item: kind and name of the gateway or load balancer.
        virtual: the address that moves between the replicas; the replica that has it is active.
        settings: kernel settings of the namespace, by path below /proc/sys such as ``net/ipv4/ip_forward``.
        files: contents of the files by file name; readable by root only.
        ruleset: name of the file that ``nft`` loads; "" for none.
        scripts: names of those files that are executable.
        secrets: names of certificates; each is written beside the files as ``NAME.pem``.
    """

    name: str
    kind: str
    item: str
    interfaces: tuple[ApplianceInterface, ...]
    virtual: str
    settings: Mapping[str, str]
    files: Mapping[str, str]
    programs: tuple[ApplianceProgram, ...]
    ruleset: str = ""
    scripts: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
