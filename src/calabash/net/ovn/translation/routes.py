"""Translation of routes to static routes and router policies, and of the platform's drop policies."""

from __future__ import annotations

from calabash.model.addresses import Address, Network
from calabash.model.network import NetworkRoute
from calabash.net.ovn.northbound.draft import Draft
from calabash.net.ovn.northbound.rows import Ref
from calabash.net.ovn.translation.topology import router_of
from calabash.net.ovn.translation.view import View, filter_version, match_set

USERS, USERS_MAX = 1000, 20_000  # priorities of policies of users; those of the platform are higher
GUARD = 30_000
DROP = "discard"  # next hop of a route that drops packets


def add_routes(view: View, draft: Draft) -> None:
    """Add the routes of the VPC: a policy if the route has a source, else a static route."""
    for route in view.all(NetworkRoute).values():
        key = f"{route.name}:route"
        if route.source is None:
            add_route(view, draft, key, route.prefix, (route.next_hop, None))
            continue
        family = f"ip{route.prefix.version}"
        match = f"{family}.src == {route.source} && {family}.dst == {route.prefix}"
        draft.add(
            "Logical_Router_Policy",
            key,
            {
                "priority": USERS + min(max(route.priority, 0), USERS_MAX),
                "match": match,
                "action": "drop" if route.next_hop is None else "reroute",
                "nexthops": frozenset() if route.next_hop is None else frozenset((str(route.next_hop),)),
            },
            under=(router_of(view), "policies"),
        )


def add_route(view: View, draft: Draft, key: str, prefix: Network, by: tuple[Address | None, Ref | None]) -> None:
    """Add a static route.

    Args:
        key: key of the row, unique in the VPC.
        prefix: destination of the route.
        by: pair of the next hop (None drops the packets) and the router port by which the packets leave (None: OVN
            derives the router port from the next hop).
    """
    next_hop, port = by
    draft.add(
        "Logical_Router_Static_Route",
        key,
        {
            "ip_prefix": str(prefix),
            "nexthop": DROP if next_hop is None else str(next_hop),
            "output_port": port.key if port is not None else None,
        },
        under=(router_of(view), "static_routes"),
    )


def add_guard(view: View, draft: Draft, key: str, match: str) -> None:
    """Add a router policy that drops matching packets. It precedes all policies of users."""
    draft.add(
        "Logical_Router_Policy",
        f"{key}:guard",
        {"priority": GUARD, "match": match, "action": "drop"},
        under=(router_of(view), "policies"),
    )


def add_range_guards(view: View, draft: Draft, port: Ref, side: str, ranges: tuple[Network, ...]) -> None:
    """Drop packets that enter through a router port with an address outside of ``ranges``.

    ``side`` is "src" or "dst", the address that is compared. Packets of an IP version without a range are dropped.
    """
    for version in (4, 6):
        family, own = f"ip{version}", filter_version(ranges, version)
        beyond = f" && {family}.{side} != {match_set(own)}" if own else ""
        add_guard(view, draft, f"{port.key}:{side}{version}", f'inport == "{port.key}" && {family}{beyond}')


def add_forgery_guards(view: View, draft: Draft, port: Ref) -> None:
    """Drop packets that enter through an outside router port with a source address of the VPC.

    Such a source is forged. Security groups would treat the packet as one from the VPC.
    """
    for version in (4, 6):
        own = filter_version(view.vpc.cidrs, version)
        if own:
            add_guard(
                view,
                draft,
                f"{port.key}:own{version}",
                f'inport == "{port.key}" && ip{version}.src == {match_set(own)}',
            )
