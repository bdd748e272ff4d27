"""The rows of one owner: of a VPC, or of what several share."""

from __future__ import annotations

from dataclasses import dataclass

from calabash.model.addresses import Network
from calabash.net.objects.backends import NONE_CLOSED, ClosedBackends
from calabash.net.ovn.northbound.rows import PLATFORM, Rows
from calabash.net.ovn.translation.platform import platform_rows
from calabash.net.ovn.translation.view import NetworkHosts
from calabash.net.ovn.translation.vpc import vpc_rows
from calabash.net.store.networks import Networks


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What rows depend on besides the book.

    Args:
        protected: ranges of the platform's own networks, which no tenant reaches by an uplink.
        closed: backends that get no new connections.
    """

    hosts: NetworkHosts
    protected: tuple[Network, ...] = ()
    closed: ClosedBackends = NONE_CLOSED


def planned(networks: Networks, owner: str, around: Surroundings) -> Rows:
    """Raises CalabashError for what cannot be drawn up; none for a VPC that is no more."""
    if owner == PLATFORM:
        return platform_rows(networks, protected=around.protected, hosts=around.hosts)
    return vpc_rows(networks, owner, hosts=around.hosts, closed=around.closed)
