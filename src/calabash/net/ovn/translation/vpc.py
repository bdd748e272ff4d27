"""Translation of a VPC to the rows of OVN's northbound database.

Each group of objects has a module in this package that adds rows to a draft. The rows of a VPC contain no reference to
rows of another VPC, so each VPC can be written on its own. VPCs are connected only by names in columns: of the router
port of a peer, of the switch of an uplink, and of the switch of an endpoint. Rows that several VPCs share are built by
``platform_rows``.
"""

from __future__ import annotations

from calabash.model.network import Vpc
from calabash.net.objects.backends import NONE_CLOSED, ClosedBackends
from calabash.net.objects.collection import NetworkObjects
from calabash.net.ovn.northbound.draft import Draft
from calabash.net.ovn.northbound.rows import Rows
from calabash.net.ovn.translation.cross_vpc import add_endpoints, add_peerings
from calabash.net.ovn.translation.dedicated_lines import add_lines
from calabash.net.ovn.translation.dhcp_dns import add_dhcp_and_dns
from calabash.net.ovn.translation.gateways import add_gateway
from calabash.net.ovn.translation.load_balancers import add_balancers
from calabash.net.ovn.translation.qos import add_qos
from calabash.net.ovn.translation.routes import add_routes
from calabash.net.ovn.translation.security_groups import add_groups
from calabash.net.ovn.translation.topology import add_ports, add_router, add_subnets
from calabash.net.ovn.translation.view import NetworkHosts, View

TRANSLATORS = (
    add_router,
    add_subnets,
    add_ports,
    add_groups,
    add_dhcp_and_dns,
    add_routes,
    add_gateway,
    add_balancers,
    add_peerings,
    add_endpoints,
    add_lines,
    add_qos,
)


def vpc_rows(networks: NetworkObjects, vpc: str, *, hosts: NetworkHosts, closed: ClosedBackends = NONE_CLOSED) -> Rows:
    """Return all rows of one VPC, or none if it does not exist.

    Args:
        networks: all networks of the pool.
        vpc: name of the VPC.
        hosts: the gateway hosts.
        closed: backends whose programs have stopped listening, so that they receive no new connections.
    """
    found = networks.find(Vpc, vpc)
    if found is None:
        return {}
    view = View(networks=networks, vpc=found, hosts=hosts, closed=closed)
    draft = Draft(vpc)
    for add in TRANSLATORS:
        add(view, draft)
    return draft.rows()
