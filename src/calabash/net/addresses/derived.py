"""MACs and addresses that nobody sets: made of numbers that the book of networks allocates, so that no two are alike.

MACs of ports begin with ``0a`` and say VPC (16 bits) and port (24 bits). The platform's own begin with ``0e`` and say what
they are for (8 bits) and two numbers of 16 bits; no user may set one of these. Transit addresses, between routers of VPCs,
are link-local and of a range of IPv6 of our own, which no VPC may use.
"""

from __future__ import annotations

from enum import IntEnum
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network

from calabash.model.addresses import Address, Network

PLATFORM_MAC = "0e:"
TRANSIT_4 = IPv4Network("169.254.0.0/16")
TRANSIT_6 = IPv6Network("fdca:1aba:5b00::/40")
PORTS_PER_VPC_EVER = (1 << 24) - 1  # numbers that a MAC has room for
PREFIX_4, PREFIX_6 = 29, 64
CHECKED_MIN = 16  # addresses of the smallest range in which one is kept for checks


class MacUse(IntEnum):
    """What a MAC of the platform's is for, and which two numbers tell it from others of its use."""

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
    """Of a floating address that hosts translate themselves: of the uplink's number and the address."""
    return _mac(0x06 << 40 | uplink_number << 32 | int(address) & 0xFFFF_FFFF)


def peering_interfaces(number: int, side: int) -> tuple[IPv4Interface, IPv6Interface]:
    """Of peering ``number`` (1..4095), the address of side 0 (the VPC with the smaller name) or 1."""
    return _interfaces(number, side)


def endpoint_interfaces(number: int, side: int) -> tuple[IPv4Interface, IPv6Interface]:
    """Of endpoint ``number`` (1..4095): side 0 the consumer's router, 1 the provider's, 2 the service's own address."""
    return _interfaces(number + 4096, side)


def checks_address(network: Network, routers: tuple[Address, ...]) -> Address | None:
    """From which hosts check ports of a subnet: the last that a station could have and no router has, so that no port has
    it. None where the range has no room for one."""
    if network.num_addresses < CHECKED_MIN:
        return None
    last = -2 if network.version == 4 else -1
    return network[last] if network[last] not in routers else network[last - 1]


def _interfaces(slot: int, side: int) -> tuple[IPv4Interface, IPv6Interface]:
    four = IPv4Address(int(TRANSIT_4[0]) + slot * 8 + 1 + side)
    six = IPv6Address(int(TRANSIT_6[0]) + (slot << 64) + 1 + side)
    return IPv4Interface((four, PREFIX_4)), IPv6Interface((six, PREFIX_6))


def _mac(number: int) -> str:
    return number.to_bytes(6).hex(":")
