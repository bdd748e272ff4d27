"""Strict parsers of IP ranges, IP addresses, MAC addresses and names of tenant networks."""

from __future__ import annotations

import itertools
import re
from abc import ABCMeta
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING

from calabash.model.errors import CalabashError

if TYPE_CHECKING:
    Address = IPv4Address | IPv6Address
    Network = IPv4Network | IPv6Network
else:  # msgspec decodes to a class, and not to a union of two classes that it does not know
    Address, Network = ABCMeta("Address", (), {}), ABCMeta("Network", (), {})
    Address.register(IPv4Address), Address.register(IPv6Address)
    Network.register(IPv4Network), Network.register(IPv6Network)

NAME_LENGTH_MAX = 40
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_MAC = re.compile(r"([0-9a-f]{2}:){5}[0-9a-f]{2}")
_TEXT_MAX = 64  # longer than any address


def parse_network(text: str, what: str = "network") -> Network:
    """Parse ``10.0.0.0/16`` or ``fd00::/64``; ``what`` names the value in errors.

    Raises CalabashError if the prefix length is missing or a host bit is set.
    """
    try:
        if "/" not in text or len(text) > _TEXT_MAX:
            raise ValueError("no prefix length")
        return ip_network(text)
    except ValueError as error:
        raise CalabashError(
            f"{what}: {text[:_TEXT_MAX]!r} is not an IP range", hint="write it as 10.0.0.0/16, with all host bits zero"
        ) from error


def parse_address(text: str, what: str = "address") -> Address:
    """Parse ``10.0.0.7`` or ``fd00::7``, without a zone; ``what`` names the value in errors. Raises CalabashError."""
    try:
        if "%" in text or len(text) > _TEXT_MAX:
            raise ValueError("no plain address")
        return ip_address(text)
    except ValueError as error:
        raise CalabashError(
            f"{what}: {text[:_TEXT_MAX]!r} is not an IP address", hint="write it as 10.0.1.11"
        ) from error


def parse_mac(text: str, what: str = "MAC") -> str:
    """Parse a unicast MAC address like ``0a:00:00:00:00:01`` and return it in lower case.

    Raises CalabashError, in which ``what`` names the value.
    """
    small = text[:_TEXT_MAX].lower()
    if not _MAC.fullmatch(small) or int(small[:2], 16) & 1 or small == "00:00:00:00:00:00":
        raise CalabashError(f"{what}: {small!r} is not a unicast MAC address", hint="write it as 0a:00:00:00:00:01")
    return small


def check_label(text: str, what: str) -> str:
    """Return the text if it is a valid label of a name: a DNS label of at most 40 characters. Raises CalabashError."""
    if len(text) > NAME_LENGTH_MAX or not _LABEL.fullmatch(text):
        raise CalabashError(
            f"{what}: {text[: NAME_LENGTH_MAX + 1]!r} is not a valid name",
            hint=f"use at most {NAME_LENGTH_MAX} lower-case letters, digits and dashes, with a letter or digit at each end",
        )
    return text


def check_path(text: str, parts: int, what: str) -> tuple[str, ...]:
    """Return the labels of the path of a network object: ``red/a/web1`` gives red, a and web1.

    Args:
        parts: the number of labels that the path must have.
        what: the kind of the object, for the error message.

    Raises:
        CalabashError: the name has another number of labels, or a label is not valid.
    """
    found = text[: (NAME_LENGTH_MAX + 1) * (parts + 1)].split("/")
    if len(found) != parts:
        example = "/".join(("red", "a", "web1")[:parts])
        raise CalabashError(
            f"{what}: {text[:200]!r} has {len(found)} parts, not {parts}", hint=f"write it as {example}"
        )
    return tuple(check_label(part, what) for part in found)


def overlapping(networks: Iterable[Network]) -> tuple[Network, Network] | None:
    """Return two of the networks that have addresses in common, or None if there are no such two."""
    known = tuple(networks)
    for version in (4, 6):
        ordered = sorted((n for n in known if n.version == version), key=lambda n: (int(n[0]), n.prefixlen))
        for one, other in itertools.pairwise(ordered):
            if int(other[0]) <= int(one[-1]):
                return one, other
    return None
