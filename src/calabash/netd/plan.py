"""The rows of one owner: of a VPC, or of what several share."""

from __future__ import annotations

from calabash.net.book import Networks
from calabash.net.desired import desired, desired_platform
from calabash.net.rows import PLATFORM, Rows
from calabash.net.view import NetworkHosts


def planned(networks: Networks, owner: str, hosts: NetworkHosts) -> Rows:
    """Raises CalabashError for what cannot be drawn up; none for a VPC that is no more."""
    if owner == PLATFORM:
        return desired_platform()
    return desired(networks, owner, hosts=hosts)
