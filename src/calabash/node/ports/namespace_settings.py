"""Interface settings and resolv.conf of an allocation's namespace, computed from the facts about its ports. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.adapters.links.interfaces import LinkSettings
from calabash.model.addresses import Network
from calabash.node.ports.protocol import PortFacts


def link_settings(facts: PortFacts, *, first: bool) -> LinkSettings:
    """Return the settings of one port's interface.

    The first port of an allocation gets the default routes; the others get routes to their own VPC.
    """
    routes: list[tuple[str, str]] = []
    for gateway in facts.gateways:
        ranges = (
            [_default_route(gateway.version)]
            if first
            else [str(n) for n in facts.reaches if _is_beyond_subnet(n, facts)]
        )
        routes += [(text, str(gateway)) for text in ranges if (":" in text) == (gateway.version == 6)]
    return LinkSettings(
        mac=facts.mac,
        mtu_bytes=facts.mtu_bytes,
        addresses=tuple(f"{address}/{network.prefixlen}" for address, network in facts.addresses),
        routes=tuple(routes),
    )


def resolver_text(ports: Sequence[PortFacts]) -> str:
    """Return the resolv.conf of a program with these ports; "" if none of their subnets has DNS."""
    servers = dict.fromkeys(str(server) for facts in ports for server in facts.resolvers)
    domains = dict.fromkeys(facts.domain for facts in ports if facts.domain and facts.resolvers)
    if not servers:
        return ""
    lines = [f"nameserver {server}" for server in list(servers)[:3]]  # libc uses no more
    return "\n".join(([f"search {' '.join(domains)}"] if domains else []) + lines) + "\n"


def _default_route(version: int) -> str:
    return "::/0" if version == 6 else "0.0.0.0/0"


def _is_beyond_subnet(network: Network, facts: PortFacts) -> bool:
    """Return True if a network is not one of the subnet ranges of the port's own addresses."""
    return network not in {own for _, own in facts.addresses}
