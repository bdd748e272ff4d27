"""``calabash net``: group of the network commands; each command's module is imported only when it runs."""

from __future__ import annotations

import click

from calabash.cli.lazy import LazyGroup

_SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Objects": {
        "vpc": ("net.objects:vpc", "VPCs, the address spaces of tenants."),
        "subnet": ("net.objects:subnet", "Subnets of a VPC."),
        "port": ("net.objects:port", "Ports, which connect programs, pods and machines to a subnet."),
        "sg": ("net.objects:sg", "Security groups, which allow traffic of ports."),
        "lb": ("net.objects:lb", "Load balancers, one address for several ports."),
        "certificate": ("net.files:certificate", "Certificates of load balancers that terminate TLS."),
        "dns": ("net.objects:dns", "DNS records of a VPC's subnets."),
        "qos": ("net.objects:qos", "Rate limits of ports."),
    },
    "Connections": {
        "gateway": ("net.objects:gateway", "Gateways from VPCs to outside networks."),
        "eip": ("net.objects:eip", "Outside addresses of a VPC."),
        "nat": ("net.objects:nat", "Outside ports that are forwarded to inside ports."),
        "fip": ("net.objects:fip", "Outside addresses mapped to ports, in both directions."),
        "route": ("net.objects:route", "Static and policy routes of a VPC."),
        "peer": ("net.objects:peer", "Peerings: routes between two VPCs that both request."),
        "endpoint": ("net.objects:endpoint", "Services of other VPCs under an address of the VPC."),
        "line": ("net.objects:line", "Dedicated lines, provider VLANs of one VPC."),
        "uplink": ("net.objects:uplink", "Uplinks to outside networks."),
    },
    "Files": {
        "apply": ("net.files:apply", "Create and change network objects from files."),
        "diff": ("net.files:diff", "Show the changes that applying files would make."),
        "render": ("net.render:render", "Print the networks as objects of Kube-OVN."),
    },
    "Checks and fabrics": {
        "doctor": ("net.doctor:doctor", "Check the requirements of networks."),
        "check": ("net.check:check", "Test the connectivity rules of a VPC with packets."),
        "fabric": ("net.fabric:fabric", "Show the tenants of devices on RDMA fabrics."),
    },
    "Network lab": {
        "up": ("net.lab:up", "Start a lab network in namespaces of this machine."),
        "down": ("net.lab:down", "Stop and delete a lab network."),
        "status": ("net.lab:status", "Show the lab networks of this machine and their daemons."),
        "ctl": ("net.lab:ctl", "Run a program of OVN or Open vSwitch on a lab network."),
    },
}


@click.group(cls=LazyGroup, sections=_SECTIONS)
def net() -> None:
    """Manage networks of tenants: VPCs, subnets, ports, gateways and load balancers."""
