"""Arithmetic of address ranges: containment and overlap."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network

from calabash.model.addresses import Address, Network


def is_within(inner: Network, outers: Iterable[Network]) -> bool:
    """Return True if one of the ranges ``outers`` contains all of ``inner``."""
    return any(
        inner.subnet_of(outer)
        if isinstance(inner, IPv4Network) and isinstance(outer, IPv4Network)
        else isinstance(inner, IPv6Network) and isinstance(outer, IPv6Network) and inner.subnet_of(outer)
        for outer in outers
    )


def range_of(address: Address, ranges: Iterable[Network]) -> Network | None:
    """Return the first range that contains the address, or None."""
    return next((network for network in ranges if address in network), None)


def overlaps(one: Network, other: Network) -> bool:
    """Return True if the two ranges share an address. Ranges of different IP versions never do."""
    return one.version == other.version and int(one[0]) <= int(other[-1]) and int(other[0]) <= int(one[-1])


def first_overlap(ranges: Iterable[Network], others: Iterable[Network]) -> tuple[Network, Network] | None:
    """Return the first pair, one range of ``ranges`` and one of ``others``, that share an address, or None."""
    kept = tuple(others)
    return next(((one, other) for one in ranges for other in kept if overlaps(one, other)), None)
