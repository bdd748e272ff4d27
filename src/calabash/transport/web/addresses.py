"""Addresses that the pool may connect to on behalf of untrusted users: public ones, and those that an administrator allowed."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from calabash.model.errors import CalabashError, Reason

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressRule:
    """Rule for the addresses that may be reached: public ones, and those that an administrator has allowed.

    Args:
        allowed: networks that an administrator has allowed in addition to public addresses.
        everything: True to allow all addresses.
    """

    allowed: tuple[Network, ...] = ()
    everything: bool = False

    def named(self, address: Address) -> bool:
        """Return True if the rule names the address: it is in an allowed network, or everything is allowed.

        A public address that is in no allowed network is not named. Connections without TLS are limited to named addresses.
        """
        return self.everything or any(
            meant in network
            for network in self.allowed
            for meant in _meant(address)
            if meant.version == network.version
        )

    def permits(self, address: Address) -> bool:
        """Return True if the rule names the address, or if it is public.

        An IPv6 address that embeds an IPv4 address is public only if both are.
        """
        return self.named(address) or all(_public(meant) for meant in _meant(address))


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parse networks and single addresses. Raises CalabashError(BAD_FILE) that names the invalid text."""
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise CalabashError(
                f"{text!r} is no network: {error}", reason=Reason.BAD_FILE, hint="for example 10.20.0.0/16 or 10.20.0.5"
            ) from None
    return tuple(found)


def _public(address: Address) -> bool:
    return address.is_global and not address.is_multicast and not address.is_reserved


def _meant(address: Address) -> tuple[Address, ...]:
    """Return the address and the IPv4 addresses that it embeds (6to4, Teredo, NAT64), to which packets may be translated.

    For an IPv4-mapped address returns only the IPv4 address.
    """
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    inner = [address.sixtofour, *(address.teredo or ())]
    if address in _NAT64:
        inner.append(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    return (address, *(one for one in inner if one is not None))
