"""Translation of dedicated lines: a switch for a VLAN of the provider network, joined to the router of the VPC.

Packets that enter through a line are dropped unless they go to the ranges of the VPC, where security groups apply.
"""

from __future__ import annotations

from calabash.model.network import DedicatedLine
from calabash.net.addresses.derived import MacUse, platform_mac
from calabash.net.ovn.northbound import naming
from calabash.net.ovn.northbound.draft import Draft
from calabash.net.ovn.northbound.rows import Value
from calabash.net.ovn.translation.routes import add_forgery_guards, add_range_guards, add_route
from calabash.net.ovn.translation.topology import add_gateway_port, add_localnet_port, add_switch_port_to_router
from calabash.net.ovn.translation.view import View


def add_lines(view: View, draft: Draft) -> None:
    """Add the dedicated lines of the VPC."""
    for line in view.all(DedicatedLine).values():
        network = naming.line_link(line.name)
        switch = draft.add("Logical_Switch", naming.line_switch(line.name), {})
        add_localnet_port(draft, network, switch, line.physical, line.vlan)
        columns: dict[str, Value] = {
            "mac": platform_mac(MacUse.LINE, view.vpc.number, line.number),
            "networks": frozenset((f"{line.address}/{line.cidr.prefixlen}",)),
            "options": {"gateway_mtu": str(view.vpc.mtu_bytes)},
        }
        port = add_gateway_port(view, draft, network, columns, view.priorities(line.hosts, view.vpc.number))
        add_switch_port_to_router(draft, network, switch)
        for prefix in line.routes:
            add_route(view, draft, f"{line.name}:line:{prefix}", prefix, (line.peer, port))
        add_range_guards(view, draft, port, "dst", view.vpc.cidrs)
        add_forgery_guards(view, draft, port)
