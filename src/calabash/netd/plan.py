"""The rows of one owner: of a VPC, or of what several share."""

from __future__ import annotations

from dataclasses import dataclass

from calabash.model.addresses import Network
from calabash.net.book import Networks
from calabash.net.closed import NONE_CLOSED, ClosedBackends
from calabash.net.desired import desired
from calabash.net.desired_platform import desired_platform
from calabash.net.rows import PLATFORM, Rows
from calabash.net.view import NetworkHosts


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
        return desired_platform(networks, protected=around.protected, hosts=around.hosts)
    return desired(networks, owner, hosts=around.hosts, closed=around.closed)
