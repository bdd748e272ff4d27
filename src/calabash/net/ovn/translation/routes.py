"""Rows of routes, and of policies of a router: what it sends elsewhere, and what it drops."""

from __future__ import annotations

from calabash.model.addresses import Address, Network
from calabash.model.network import NetworkRoute
from calabash.net.ovn.northbound.draft import Draft
from calabash.net.ovn.northbound.rows import Ref
from calabash.net.ovn.translation.topology import router_of
from calabash.net.ovn.translation.view import View, of_version, one_of

USERS, USERS_MAX = 1000, 20_000  # priorities of users' policies; the platform's are above all
GUARD = 30_000
DROP = "discard"  # a next hop that is none


def add_routes(view: View, draft: Draft) -> None:
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
    """``by``: the next hop, None where what goes there is dropped; and the router's port, where the next hop does not tell."""
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
    """What matches is dropped, whatever users' policies say."""
    draft.add(
        "Logical_Router_Policy",
        f"{key}:guard",
        {"priority": GUARD, "match": match, "action": "drop"},
        under=(router_of(view), "policies"),
    )


def add_range_guards(view: View, draft: Draft, port: Ref, side: str, ranges: tuple[Network, ...]) -> None:
    """What comes in by a port of the router and has its ``side`` (src, dst) outside of ``ranges`` is dropped."""
    for version in (4, 6):
        family, own = f"ip{version}", of_version(ranges, version)
        beyond = f" && {family}.{side} != {one_of(own)}" if own else ""
        add_guard(view, draft, f"{port.key}:{side}{version}", f'inport == "{port.key}" && {family}{beyond}')


def add_forgery_guards(view: View, draft: Draft, port: Ref) -> None:
    """What comes in by a port of the router from elsewhere and says it is from the VPC is dropped, as groups believe it."""
    for version in (4, 6):
        own = of_version(view.vpc.cidrs, version)
        if own:
            add_guard(
                view, draft, f"{port.key}:own{version}", f'inport == "{port.key}" && ip{version}.src == {one_of(own)}'
            )
