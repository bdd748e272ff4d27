"""Addresses and MACs that are computed from allocated numbers, for ports, routers and links between routers.

MACs of ports begin with ``0a``, followed by the number of the VPC (16 bits) and of the port (24 bits). MACs of the
platform's router ports begin with ``0e``, followed by their use (8 bits, ``MacUse``) and two numbers of 16 bits; users
cannot set such MACs. Transit addresses are the addresses of two routers on the link that joins them. They are from the
IPv4 link-local range and from a reserved IPv6 range, which no VPC may use. The numbers of objects are unique, so no two
computed addresses are equal.
"""

from __future__ import annotations

from enum import IntEnum
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network

from calabash.model.addresses import Address, Network

PLATFORM_MAC = "0e:"
TRANSIT_4 = IPv4Network("169.254.0.0/16")
TRANSIT_6 = IPv6Network("fdca:1aba:5b00::/40")
PORT_NUMBERS_MAX = (1 << 24) - 1  # port numbers that fit into a MAC
PREFIX_4, PREFIX_6 = 29, 64
HEALTH_CHECK_RANGE_MIN = 16  # a range with fewer addresses has no source address for health checks


class MacUse(IntEnum):
    """Use of a MAC of the platform. The comment of each member names the objects whose numbers are in the MAC."""

    SUBNET = 1  # a router's port in a subnet: VPC, subnet
    UPLINK = 2  # a VPC's port at its uplink: VPC, uplink
    PEERING = 3  # a router's port of a peering: VPC, peering
    ENDPOINT = 4  # a router's port of an endpoint: VPC, endpoint
    LINE = 5  # a router's port of a line: VPC, line


def port_mac(vpc_number: int, port_number: int) -> str:
    return _mac(0x0A << 40 | vpc_number << 24 | port_number)


def platform_mac(use: MacUse, vpc_number: int, number: int) -> str:
    return _mac(0x0E << 40 | use << 32 | vpc_number << 16 | number)


def outside_mac(uplink_number: int, address: Address) -> str:
    """Return the MAC of a floating address that OVN translates on the host of the port, not on a gateway host.

    Args:
        uplink_number: number of the uplink; with ``address``, it makes the MAC unique.
    """
    return _mac(0x06 << 40 | uplink_number << 32 | int(address) & 0xFFFF_FFFF)


def peering_interfaces(number: int, side: int) -> tuple[IPv4Interface, IPv6Interface]:
    """Return the addresses of one side of a peering.

    Args:
        number: number of the peering, 1..4095.
        side: 0 for the VPC whose name sorts first, 1 for the other VPC.
    """
    return _interfaces(number, side)


def endpoint_interfaces(number: int, side: int) -> tuple[IPv4Interface, IPv6Interface]:
    """Return the addresses of one side of a service endpoint.

    Args:
        number: number of the endpoint, 1..4095.
        side: 0 for the consumer's router, 1 for the provider's router, 2 for the service itself.
    """
    return _interfaces(number + 4096, side)


def health_check_address(network: Network, routers: tuple[Address, ...]) -> Address | None:
    """Return the source address of health checks in a subnet, or None if the range is too small.

    It is the last host address of the range, or the one before if a router has the last. Ports never get it.
    """
    if network.num_addresses < HEALTH_CHECK_RANGE_MIN:
        return None
    last = -2 if network.version == 4 else -1
    return network[last] if network[last] not in routers else network[last - 1]


def _interfaces(slot: int, side: int) -> tuple[IPv4Interface, IPv6Interface]:
    four = IPv4Address(int(TRANSIT_4[0]) + slot * 8 + 1 + side)
    six = IPv6Address(int(TRANSIT_6[0]) + (slot << 64) + 1 + side)
    return IPv4Interface((four, PREFIX_4)), IPv6Interface((six, PREFIX_6))


def _mac(number: int) -> str:
    return number.to_bytes(6).hex(":")
