"""What follows from the facts of its ports for the inside of an allocation's namespace. No input, no output."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.adapters.links.interfaces import LinkSettings
from calabash.model.addresses import Network
from calabash.node.ports.protocol import PortFacts


def link_settings(facts: PortFacts, *, first: bool) -> LinkSettings:
    """Of one port's interface. The first one of an allocation has the way out; the others reach their own VPC."""
    routes: list[tuple[str, str]] = []
    for gateway in facts.gateways:
        ranges = [_everything(gateway.version)] if first else [str(n) for n in facts.reaches if _beyond(n, facts)]
        routes += [(text, str(gateway)) for text in ranges if (":" in text) == (gateway.version == 6)]
    return LinkSettings(
        mac=facts.mac,
        mtu_bytes=facts.mtu_bytes,
        addresses=tuple(f"{address}/{network.prefixlen}" for address, network in facts.addresses),
        routes=tuple(routes),
    )


def resolver_text(ports: Sequence[PortFacts]) -> str:
    """The resolv.conf of a program with these ports; "" where nobody answers DNS in their subnets."""
    servers = dict.fromkeys(str(server) for facts in ports for server in facts.resolvers)
    domains = dict.fromkeys(facts.domain for facts in ports if facts.domain and facts.resolvers)
    if not servers:
        return ""
    lines = [f"nameserver {server}" for server in list(servers)[:3]]  # as many as libc asks
    return "\n".join(([f"search {' '.join(domains)}"] if domains else []) + lines) + "\n"


def _everything(version: int) -> str:
    return "::/0" if version == 6 else "0.0.0.0/0"


def _beyond(network: Network, facts: PortFacts) -> bool:
    """Whether it is more than the port's own subnet."""
    return network not in {own for _, own in facts.addresses}
