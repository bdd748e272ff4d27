"""Configuration of keepalived: which of a pair has the virtual address. It works while nothing else of the platform does.

The two tell each other that they live by VRRP (RFC 9568) in packets to one address, every ``ADVERT_S``. Neither takes back
what the other has, so that a host that returns costs nobody a second interruption. Addresses of the outside go with the one
of the inside; the default route, too, so that nobody forwards who has not the addresses.
"""

from __future__ import annotations

from collections.abc import Sequence

from calabash.net.appliances.model import INSIDE, OUTSIDE, BalancerReplica, NfvReplica, PairSeat

ADVERT_S = 0.15  # three of them not heard, and the other takes over
ASK_S = 1  # whether HAProxy runs; twice not, and the other takes over
_PRIORITY = (0, 200, 100)  # by rank, for the first time only
_ROUTER_ID = 1  # in a subnet of its own pair; packets go to one address, so pairs do not meet


def of_gateway(replica: NfvReplica) -> str:
    """The file for one of an NFV gateway."""
    own = f"{replica.address}/{replica.outside_prefix}"
    outside = [own, *(f"{address}/32" for address in replica.addresses if address != replica.address)]
    moved = [f"{address} dev {OUTSIDE}" for address in outside]
    routes = [f"0.0.0.0/0 via {replica.outside_router} dev {OUTSIDE}"]
    return _file(replica.seat, moved, routes, tracked=(OUTSIDE,))


def of_balancer(replica: BalancerReplica, alive: str) -> str:
    """The file for one of a pair of HAProxy; ``alive``: the path of a script that says whether HAProxy runs, which is asked."""
    return _file(replica.seat, (), (), tracked=(), alive=alive)


def _file(
    seat: PairSeat, excluded: Sequence[str], routes: Sequence[str], *, tracked: Sequence[str], alive: str = ""
) -> str:
    bits = 32 if seat.virtual.version == 4 else 128
    instance = [
        "state BACKUP",
        "nopreempt",
        f"interface {INSIDE}",
        f"virtual_router_id {_ROUTER_ID}",
        f"priority {_PRIORITY[seat.rank]}",
        f"advert_int {ADVERT_S}",
        f"unicast_src_ip {seat.own}",
        *_block("unicast_peer", [str(seat.peer)]),
        *_block("track_interface", tracked),
        *_block("track_script", ["alive"] if alive else []),
        *_block("virtual_ipaddress", [f"{seat.virtual}/{bits} dev {INSIDE}"]),
        *_block("virtual_ipaddress_excluded", excluded),
        *_block("virtual_routes", routes),
    ]
    globally = [
        "vrrp_version 3",
        f"vrrp_startup_delay {4 * ADVERT_S:g}",  # until then nothing may have been heard of the other
        "vrrp_garp_master_delay 1",  # who missed the first announcements of a move hears these
        "vrrp_garp_master_repeat 3",
        "vrrp_garp_master_refresh 5",  # a host whose switch began anew learns it again
        "vrrp_garp_lower_prio_repeat 1",
    ]
    asked = [f'script "{alive}"', f"interval {ASK_S}", "timeout 2", "fall 2", "rise 1"] if alive else []
    globally += ["enable_script_security", "script_user root"] if alive else []
    lines = [
        *_block("global_defs", globally),
        *_block("vrrp_script alive", asked),
        *_block("vrrp_instance pair", instance),
    ]
    return "\n".join([*lines, ""])


def _block(title: str, lines: Sequence[str]) -> list[str]:
    return [f"{title} {{", *(f"    {line}" for line in lines), "}"] if lines else []
