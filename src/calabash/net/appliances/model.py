"""Values of appliances: a replica of an NFV gateway, one of a pair of HAProxy, and what either takes on a host.

Both kinds are pairs. One of the two has the virtual address of the VPC, and with it all traffic; keepalived decides which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from calabash.model.addresses import Address
from calabash.model.network_services import HealthCheck, TransportProtocol

INSIDE, OUTSIDE = "in0", "out0"  # devices in a replica's namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceLeg:
    """One interface of a replica.

    Args:
        port: OVN's name of it, the host's ``iface-id``.
        addresses: with prefix lengths, as ``ip`` takes them; those that move are not among them.
        routes: a range, and the next hop to it, which is reached here.
    """

    device: str
    port: str
    mac: str
    addresses: tuple[str, ...]
    mtu_bytes: int
    routes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSeat:
    """Which of a pair this is, and how the two see each other.

    Args:
        name: the replica's port, ``VPC/SUBNET/x-…``, which is the replica's name, too.
        rank: 1 or 2; number: of the VPC.
        own, peer: addresses in the subnet; ``router`` the subnet's, ``prefix`` its length.
        virtual: the address that moves.
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
    """What comes to ``outside`` goes to ``inside``: all of it (a FIP, protocol ANY, both ways), or one port (a DNAT)."""

    outside: IPv4Address
    inside: IPv4Address
    protocol: TransportProtocol = TransportProtocol.ANY
    outside_number: int = 0
    inside_number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NfvReplica:
    """One of the two of an NFV gateway.

    Args:
        gateway: its name, ``VPC/GATEWAY``.
        ranges: of the VPC; ``closed``: of the platform, which nothing of the VPC reaches.
        outside_port, outside_mac: of the leg in the uplink's segment.
        address, outside_prefix, outside_router: the gateway's own there, and the next hop.
        addresses: all others of the outside that come to it, EIPs.
        snat: whether what leaves without a FIP gets ``address``.
    """

    seat: PairSeat
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
    """One of a pair of HAProxy.

    Args:
        balancer: its name, ``VPC/LB``.
        number: where it listens, at ``seat.virtual``.
        targets: backends: ``SUBNET.PORT``, address, number.
        certificate: name of the secret that ends TLS, "" plain HTTP.
    """

    seat: PairSeat
    balancer: str
    number: int
    targets: tuple[tuple[str, Address, int], ...]
    check: HealthCheck
    certificate: str


Replica = NfvReplica | BalancerReplica


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceProgram:
    """A program that a replica keeps running.

    Args:
        name: as the package calls it; ``file`` its configuration in ``Appliance.files``, of which it is known among processes.
        arguments: of the start; ``check``: of a run that says whether the configuration is good, () where there is none.
        reload: the signal that has it read its configuration again, "" where it is started anew.
        leaves: files of its own that would keep it from starting when it was killed.
        waits: whether it is started only when packets pass at the replica's ports, as it listens for the other replica.
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
    """All that one replica takes on its host.

    Args:
        item: name of the gateway or balancer; ``kind`` its kind's word.
        virtual: the address that moves: this replica is the active one while it has it.
        settings: kernel settings of the namespace (``net/ipv4/ip_forward``).
        files: name to text; each is private to the host's root.
        ruleset: name of the file that ``nft`` loads, "" none; ``scripts``: names of those that are executed.
        secrets: names of certificates that have to be beside the files, as ``NAME.pem``.
    """

    name: str
    kind: str
    item: str
    legs: tuple[ApplianceLeg, ...]
    virtual: str
    settings: Mapping[str, str]
    files: Mapping[str, str]
    programs: tuple[ApplianceProgram, ...]
    ruleset: str = ""
    scripts: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
