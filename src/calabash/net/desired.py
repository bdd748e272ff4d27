"""What OVN's northbound database should hold for a VPC, and for what several VPCs share, as a function of the book.

Each group of objects has a module of its own, ``desired_*``, which adds rows to a draft. Rows of one VPC point to no row of
another; they meet by names only: at a port with a peer, at an uplink, at the switch of an endpoint.
"""

from __future__ import annotations

from calabash.model.network import Vpc
from calabash.net.columns import SINGLE
from calabash.net.desired_base import add_ports, add_router, add_subnets
from calabash.net.desired_groups import add_groups
from calabash.net.desired_services import add_dhcp_and_dns
from calabash.net.drafting import Draft
from calabash.net.objects import NetworkObjects
from calabash.net.rows import PLATFORM, Rows
from calabash.net.view import NetworkHosts, View

# The loss of a gateway host is seen within three of these, in ms. Health checks come from a MAC that no user may have, as
# what has it passes access lists.
OPTIONS = {"bfd-min-rx": "200", "bfd-min-tx": "200", "bfd-mult": "3", "svc_monitor_mac": "0e:ff:00:00:00:01"}


def desired(networks: NetworkObjects, vpc: str, *, hosts: NetworkHosts) -> Rows:
    """All rows of one VPC; none where there is no such VPC."""
    found = networks.find(Vpc, vpc)
    if found is None:
        return {}
    view = View(networks=networks, vpc=found, hosts=hosts)
    draft = Draft(vpc)
    for add in (add_router, add_subnets, add_ports, add_groups, add_dhcp_and_dns):
        add(view, draft)
    return draft.rows()


def desired_platform() -> Rows:
    """Rows that several VPCs share: options of the whole."""
    draft = Draft(PLATFORM)
    draft.add("NB_Global", SINGLE, {"options": OPTIONS})
    return draft.rows()
