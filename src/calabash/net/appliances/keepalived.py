"""Configuration of keepalived, which elects the active replica without any other component of the platform.

The replicas exchange VRRP advertisements (RFC 9568) by unicast, every ``ADVERT_S`` seconds. A replica that becomes
available again stays passive, because a change back would interrupt the traffic a second time. The outside addresses
and the default route move together with the virtual address, so a passive replica does not forward packets.
"""

from __future__ import annotations

from collections.abc import Sequence

from calabash.net.appliances.model import INSIDE, OUTSIDE, BalancerReplica, NfvReplica, PairMember

ADVERT_S = 0.15  # seconds; the other replica takes over after three missed advertisements
CHECK_S = 1  # seconds between checks of HAProxy; the other replica takes over after two failures
_PRIORITY = (0, 200, 100)  # by rank; decides the first election only
_ROUTER_ID = 1  # the same for all pairs: advertisements are unicast


def gateway_configuration(replica: NfvReplica) -> str:
    """Return the configuration for a replica of an NFV gateway."""
    own = f"{replica.address}/{replica.outside_prefix}"
    outside = [own, *(f"{address}/32" for address in replica.addresses if address != replica.address)]
    moved = [f"{address} dev {OUTSIDE}" for address in outside]
    routes = [f"0.0.0.0/0 via {replica.outside_router} dev {OUTSIDE}"]
    return _configuration(replica.member, moved, routes, tracked=(OUTSIDE,))


def balancer_configuration(replica: BalancerReplica, alive: str) -> str:
    """Return the configuration for a replica of a load balancer.

    ``alive`` is the path of a script that exits with 0 while HAProxy runs.
    """
    return _configuration(replica.member, (), (), tracked=(), alive=alive)


def _configuration(
    member: PairMember, excluded: Sequence[str], routes: Sequence[str], *, tracked: Sequence[str], alive: str = ""
) -> str:
    bits = 32 if member.virtual.version == 4 else 128
    instance = [
        "state BACKUP",
        "nopreempt",
        f"interface {INSIDE}",
        f"virtual_router_id {_ROUTER_ID}",
        f"priority {_PRIORITY[member.rank]}",
        f"advert_int {ADVERT_S}",
        f"unicast_src_ip {member.own}",
        *_block("unicast_peer", [str(member.peer)]),
        *_block("track_interface", tracked),
        *_block("track_script", ["alive"] if alive else []),
        *_block("virtual_ipaddress", [f"{member.virtual}/{bits} dev {INSIDE}"]),
        *_block("virtual_ipaddress_excluded", excluded),
        *_block("virtual_routes", routes),
    ]
    global_settings = [
        "vrrp_version 3",
        f"vrrp_startup_delay {4 * ADVERT_S:g}",  # advertisements of the other replica may not have arrived before
        "vrrp_garp_master_delay 1",  # repeats the announcement of a move for hosts that missed the first
        "vrrp_garp_master_repeat 3",
        "vrrp_garp_master_refresh 5",  # for hosts whose switch was restarted
        "vrrp_garp_lower_prio_repeat 1",
    ]
    script = [f'script "{alive}"', f"interval {CHECK_S}", "timeout 2", "fall 2", "rise 1"] if alive else []
    global_settings += ["enable_script_security", "script_user root"] if alive else []
    lines = [
        *_block("global_defs", global_settings),
        *_block("vrrp_script alive", script),
        *_block("vrrp_instance pair", instance),
    ]
    return "\n".join([*lines, ""])


def _block(title: str, lines: Sequence[str]) -> list[str]:
    return [f"{title} {{", *(f"    {line}" for line in lines), "}"] if lines else []
