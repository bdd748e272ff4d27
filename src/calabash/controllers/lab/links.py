"""Links of a lab: three bridges in a separate namespace, joined to the central part, the hosts and the world."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.controllers.lab import namespaces
from calabash.controllers.lab.central import ADDRESS
from calabash.controllers.lab.host import CARDS, MANAGEMENT, LabHost

FABRIC, CENTRAL, WORLD = "fab", "ctl", "world"
WORLD_ADDRESSES = ("198.51.100.1/24", "2001:db8:51::1/64")
INTERNET_ADDRESS = "203.0.113.10"  # a server behind the provider's router
OUTSIDE = "brx"  # bridge of the provider network
_BRIDGES = {"m0": "brm", "u0": "bru", "x0": OUTSIDE}
_UNDERLAY_MTU = 1600


def make_links(prefix: str, hosts: Sequence[LabHost]) -> None:
    """Create all namespaces and links of a lab. Raises CalabashError, CONFLICT if a namespace exists."""
    names = [FABRIC, CENTRAL, WORLD, *(host.name for host in hosts)]
    cables = [(CENTRAL, "m0"), (WORLD, "x0"), *((host.name, card) for host in hosts for card in CARDS)]
    namespaces.ip(
        [
            *(("netns", "add", f"{prefix}-{name}") for name in names),
            *(
                (*_cable(card, f"{prefix}-{name}"), *("peer", "name", f"{name}-{card}", "netns", f"{prefix}-{FABRIC}"))
                for name, card in cables
            ),
        ]
    )
    for name in names:
        namespaces.quiet_default(f"{prefix}-{name}", version6=name == WORLD)
    namespaces.ip(
        [
            *(("link", "add", bridge, "mtu", _UNDERLAY_MTU, "type", "bridge") for bridge in _BRIDGES.values()),
            *(("link", "set", bridge, "up") for bridge in _BRIDGES.values()),
            *(("link", "set", f"{name}-{card}", "master", _BRIDGES[card], "up") for name, card in cables),
        ],
        name=f"{prefix}-{FABRIC}",
    )
    switched = [(name, card) for name, card in cables if card != "m0"]
    namespaces.without_offloads(f"{prefix}-{FABRIC}", [f"{name}-{card}" for name, card in switched])
    for host in hosts:
        # Packets that arrive at an interface of a bridge belong to the bridge; the interface itself does not answer ARP.
        namespaces.set_kernel(host.namespace, {"net/ipv4/conf/all/arp_ignore": "1"})
        namespaces.without_offloads(host.namespace, [card for card in CARDS if card != "m0"])
        namespaces.ip(
            [
                ("address", "add", f"{MANAGEMENT}.{host.number}/24", "dev", "m0"),
                *(("link", "set", device, "up") for device in ("lo", *CARDS)),
            ],
            name=host.namespace,
        )
    namespaces.ip(
        [
            ("address", "add", f"{ADDRESS}/24", "dev", "m0"),
            *(("link", "set", device, "up") for device in ("lo", "m0")),
        ],
        name=f"{prefix}-{CENTRAL}",
    )
    _world(f"{prefix}-{WORLD}")


def _cable(card: str, namespace: str) -> tuple[str, ...]:
    return ("link", "add", card, "netns", namespace, "type", "veth")


def _world(namespace: str) -> None:
    namespaces.without_offloads(namespace, ["x0"])
    namespaces.ip(
        [
            *(("link", "set", device, "up") for device in ("lo", "x0")),
            *(("address", "add", text, "dev", "x0", "nodad") for text in WORLD_ADDRESSES),
            ("address", "add", f"{INTERNET_ADDRESS}/32", "dev", "lo"),
        ],
        name=namespace,
    )
    namespaces.set_kernel(namespace, {"net/ipv4/ip_forward": "1"})
