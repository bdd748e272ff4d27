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
        port: its OVN port, the host's ``iface-id``.
        addresses: fixed addresses with prefix lengths, in the format of ``ip``; without addresses that move.
        routes: ranges with the next hop, reached by this interface.
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
        rank: 1 or 2.
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
    """Translation from ``outside`` to ``inside``: of one port (DNAT), or of all packets both ways (FIP, protocol ANY)."""

    outside: IPv4Address
    inside: IPv4Address
    protocol: TransportProtocol = TransportProtocol.ANY
    outside_number: int = 0
    inside_number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NfvReplica:
    """Replica of an NFV gateway.

    Args:
        gateway: its name, ``VPC/GATEWAY``.
        ranges: ranges of the VPC.
        closed: ranges of the platform, which the VPC must not reach.
        outside_port, outside_mac: OVN port and MAC in the segment of the uplink.
        address: outside address of the gateway.
        outside_prefix: prefix length of the uplink.
        outside_router: next hop at the uplink.
        addresses: EIPs.
        snat: True translates the source of outgoing packets without a FIP to ``address``.
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
        balancer: its name, ``VPC/LB``.
        number: port on which it listens at ``member.virtual``.
        targets: backends: ``SUBNET.PORT``, address, port number.
        certificate: name of the secret for TLS termination; "" for plain HTTP.
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
        file: its configuration in ``Appliance.files``; processes are identified by it.
        arguments: arguments of the start.
        check: arguments that check the configuration; () if the program has no such check.
        reload: signal that reloads the configuration; "" if the program has to be restarted.
        leaves: files that the program leaves when it is killed and that would prevent its start.
        waits: True starts it only after packets pass at the ports of the replica, because it listens for the other replica.
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
        kind, item: kind and name of the gateway or load balancer.
        virtual: the address that moves; the replica that has it is active.
        settings: kernel settings of the namespace (``net/ipv4/ip_forward``).
        files: text by file name; readable by root only.
        ruleset: file that ``nft`` loads, or "".
        scripts: files that are executable.
        secrets: certificates that are needed beside the files, as ``NAME.pem``.
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
