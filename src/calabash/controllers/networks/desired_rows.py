"""Desired rows of one owner, and the order in which changes of rows are made.

The *owner* of a row is a VPC, or the platform for rows that several VPCs share. northd processes the rows of a new port
incrementally, within milliseconds. But a change of a DNS row makes northd recompute all networks, which takes more than
a second for a thousand networks. DNS changes are therefore delayed, so that a new port works without waiting for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calabash.model.addresses import Network
from calabash.net.objects.backends import NONE_CLOSED, ClosedBackends
from calabash.net.ovn.northbound.rows import PLATFORM, Change, Rows, Update
from calabash.net.ovn.translation.platform import platform_rows
from calabash.net.ovn.translation.view import NetworkHosts
from calabash.net.ovn.translation.vpc import vpc_rows
from calabash.net.store.networks import Networks


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Inputs of the translation besides the networks.

    Args:
        hosts: the gateway hosts.
        protected: ranges of the platform's own networks, which tenants must not reach by an uplink.
        closed: backends whose programs have stopped listening, so that they get no new connections.
    """

    hosts: NetworkHosts
    protected: tuple[Network, ...] = ()
    closed: ClosedBackends = NONE_CLOSED


def owner_rows(networks: Networks, owner: str, around: Surroundings) -> Rows:
    """Return the desired rows of an owner; empty for a deleted VPC. Raises CalabashError if they cannot be computed."""
    if owner == PLATFORM:
        return platform_rows(networks, protected=around.protected, hosts=around.hosts)
    return vpc_rows(networks, owner, hosts=around.hosts, closed=around.closed)


def without_dns_updates(changes: Sequence[Change]) -> tuple[Change, ...]:
    """Return the changes to make now: updates of DNS rows are left out unless all changes are such updates."""
    names = [isinstance(change, Update) and change.row.table == "DNS" for change in changes]
    if all(names) or not any(names):
        return tuple(changes)
    return tuple(change for change, name in zip(changes, names, strict=True) if not name)
