"""nftables ruleset of an NFV gateway replica, as text for ``nft -f``: one table, replaced atomically.

It forwards packets from the ranges of the gateway's own VPC to the outside, and packets from the outside that a NAT
rule translates; all others are dropped. The ruleset contains only addresses and numbers, no text of users.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from calabash.model.network_services import TransportProtocol
from calabash.net.appliances.model import INSIDE, OUTSIDE, NfvReplica, Translation

TABLE = "calabash"
SYNC_PORT = 3780  # UDP port of conntrackd between the replicas
_VRRP = 112  # IP protocol number
_ALWAYS_CLOSED = ("127.0.0.0/8", "169.254.0.0/16")  # loopback, and link-local with metadata services


def ruleset(replica: NfvReplica) -> str:
    """Return the text of the ruleset, which is loaded as a whole or refused as a whole."""
    chains = (
        ("forward", "filter hook forward priority filter; policy drop", _forward(replica)),
        ("input", "filter hook input priority filter; policy drop", _input(replica)),
        ("prerouting", "nat hook prerouting priority dstnat; policy accept", _destinations(replica)),
        ("postrouting", "nat hook postrouting priority srcnat; policy accept", _sources(replica)),
    )
    lines = [f"table inet {TABLE}", f"delete table inet {TABLE}", f"table inet {TABLE} {{"]
    for name, kind, rules in chains:
        lines += [f"\tchain {name} {{", f"\t\ttype {kind};", *(f"\t\t{rule}" for rule in rules), "\t}"]
    return "\n".join([*lines, "}", ""])


def _forward(replica: NfvReplica) -> Iterator[str]:
    inward, outward = f'iifname "{INSIDE}"', f'oifname "{OUTSIDE}"'
    yield f"{inward} {outward} ip daddr {_set((*_ALWAYS_CLOSED, *replica.closed))} drop"
    yield "ct state established,related accept"
    yield "ct state invalid drop"
    yield f"{inward} {outward} ip saddr {_set(replica.ranges)} ip daddr != {_set(replica.ranges)} accept"
    yield f'iifname "{OUTSIDE}" oifname "{INSIDE}" ct status dnat ip daddr {_set(replica.ranges)} accept'


def _input(replica: NfvReplica) -> Iterator[str]:
    member = replica.member
    yield 'iifname "lo" accept'
    yield f'iifname "{INSIDE}" ip saddr {member.peer} ip protocol {_VRRP} accept'
    yield f'iifname "{INSIDE}" ip saddr {member.peer} ip daddr {member.own} udp dport {SYNC_PORT} accept'
    yield "ct state established,related accept"
    yield "icmp type echo-request limit rate 100/second accept"


def _destinations(replica: NfvReplica) -> Iterator[str]:
    for one in _ordered(replica.translations):
        if one.protocol is TransportProtocol.ANY:
            yield f'iifname "{OUTSIDE}" ip daddr {one.outside} dnat ip to {one.inside}'
        else:
            what = f"{one.protocol.value} dport {one.outside_number}"
            yield f'iifname "{OUTSIDE}" ip daddr {one.outside} {what} dnat ip to {one.inside}:{one.inside_number}'


def _sources(replica: NfvReplica) -> Iterator[str]:
    for one in _ordered(replica.translations):
        if one.protocol is TransportProtocol.ANY:
            yield f'oifname "{OUTSIDE}" ip saddr {one.inside} snat ip to {one.outside}'
    if replica.snat:
        yield f'oifname "{OUTSIDE}" ip saddr {_set(replica.ranges)} snat ip to {replica.address}'


def _ordered(translations: Iterable[Translation]) -> list[Translation]:
    """Sort translations of single ports before translations of whole addresses, because the first match counts."""
    return sorted(
        translations, key=lambda one: (one.protocol is TransportProtocol.ANY, int(one.outside), one.outside_number)
    )


def _set(members: Iterable[object]) -> str:
    return "{ " + ", ".join(dict.fromkeys(map(str, members))) + " }"
