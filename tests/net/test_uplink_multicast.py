"""Tests that a multicast frame reaches all routers of an uplink with the maximum number of VPCs."""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_network

import pytest
from tests.net.realized_lab import RealizedLab, eventually

from calabash.controllers.lab.lab import Lab
from calabash.model.network import NetworkGateway, Port, Subnet, Uplink, Vpc
from calabash.net.checks.gateways import VPCS_PER_UPLINK_MAX, vpcs_limit

HOSTS, GATEWAYS = ("h1",), ("g1",)
RESUBMITS_MAX = 4096  # of Open vSwitch, for one frame
FRAMES = {
    "router advertisement": (
        "icmp6,dl_src=0a:00:00:00:00:99,dl_dst=33:33:00:00:00:01,ipv6_src=fe80::99,ipv6_dst=ff02::1,nw_ttl=255,"
        "icmpv6_type=134,icmpv6_code=0"
    ),
    "question for an address": (
        "arp,dl_src=0a:00:00:00:00:99,dl_dst=ff:ff:ff:ff:ff:ff,arp_op=1,arp_spa=198.51.100.200,arp_tpa=198.51.100.201,"
        "arp_sha=0a:00:00:00:00:99"
    ),
    "multicast DNS": (
        "udp,dl_src=0a:00:00:00:00:99,dl_dst=01:00:5e:00:00:fb,nw_src=198.51.100.200,nw_dst=224.0.0.251,nw_ttl=64,"
        "udp_src=5353,udp_dst=5353"
    ),
}


@pytest.fixture(scope="module")
def full(lab: Lab) -> Lab:
    """Create a gateway host with one uplink that has the maximum number of VPCs."""
    network = ip_network("198.51.100.0/24")
    up = Uplink(name="up", cidr=network, gateway=ip_address("198.51.100.1"))
    assert vpcs_limit(up) == VPCS_PER_UPLINK_MAX
    with RealizedLab(lab) as realized:
        realized.put(up)
        for number in range(VPCS_PER_UPLINK_MAX):
            name = f"v{number}"
            realized.put(
                Vpc(name=name, cidrs=(ip_network("10.0.0.0/16"),)),
                Subnet(name=f"{name}/a", cidrs=(ip_network("10.0.1.0/24"),)),
                Port(name=f"{name}/a/web"),
                NetworkGateway(name=f"{name}/out", snat=True),
            )
        realized.apply()
    eventually(lambda: _routers(lab) == VPCS_PER_UPLINK_MAX, "the gateway host floods to the routers of all VPCs")
    return lab


def _traced(lab: Lab, frame: str) -> str:
    """Return the datapath actions of Open vSwitch for a frame of the provider's network."""
    return lab.host(GATEWAYS[0]).appctl("ovs-vswitchd", "ofproto/trace", "br-ex", f"in_port=1,{frame}")


def _routers(lab: Lab) -> int:
    """Return the number of routers to which the gateway host floods a router advertisement."""
    trace = _traced(lab, FRAMES["router advertisement"])
    return len(set(re.findall(r"set_field:(0x[0-9a-f]+)->metadata", trace))) - 1  # the uplink's switch is one of them


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_multicast_of_the_providers_network_is_not_cut_off_with_a_full_uplink(full: Lab, frame: str) -> None:
    trace = _traced(full, frame)
    assert 0 < trace.count("resubmit") < RESUBMITS_MAX
    assert f"over {RESUBMITS_MAX} resubmit actions" not in trace
