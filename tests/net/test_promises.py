"""Tests of the checks of `calabash net check` beyond subnets: each passes, and fails after its cause was removed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from ipaddress import ip_address, ip_network

import pytest
from tests.daemons.world import until
from tests.net.site import Site
from tests.net.station_sockets import Banner

from calabash.adapters.links import namespaces
from calabash.controllers.checks import external, probes
from calabash.controllers.checks.probes import Probe
from calabash.controllers.lab import namespaces as lab_namespaces
from calabash.controllers.lab.lab import Lab
from calabash.model.network import (
    DedicatedLine,
    Direction,
    Eip,
    NatKind,
    NatRule,
    NetworkGateway,
    Peering,
    Port,
    QosPolicy,
    SecurityGroup,
    SecurityRule,
    Subnet,
    Uplink,
    Vpc,
)
from calabash.model.network_services import Backend, LoadBalancer, ServiceEndpoint, TransportProtocol
from calabash.node.ports.port_facts import facts_of

HOSTS, GATEWAYS = ("h1",), ("g1",)
ANYWHERE = ip_network("0.0.0.0/0")
OPEN = tuple(
    SecurityRule(direction=direction, protocol=TransportProtocol.ANY, peer=ANYWHERE) for direction in Direction
)
BOUND = 2_000_000
PROMISES = {
    "gateway red/out leads to the outside",
    "fip red/own leads from 198.51.100.71 to red/a/web",
    "dnat red/http leads from 198.51.100.72:80 to red/a/web",
    "lb red/site answers at 10.0.1.100:80",
    "endpoint red/models answers at 10.0.1.150:80",
    "peering red/green leads there",
    "line red/dc leads to 192.0.2.2",
}


@pytest.fixture(scope="module")
def made(site: Site, lab: Lab) -> Iterator[dict[str, Probe]]:
    """Create a VPC with all features, its probes, and the servers that answer them."""
    site.put(
        Uplink(name="up", cidr=ip_network("198.51.100.0/24"), gateway=ip_address("198.51.100.1")),
        Vpc(name="red", cidrs=(ip_network("10.0.0.0/16"),)),
        Subnet(name="red/a", cidrs=(ip_network("10.0.1.0/24"),), dhcp=True),
        SecurityGroup(name="red/open", rules=OPEN),
        QosPolicy(name="red/slow", egress_bits_per_s=BOUND, ingress_bits_per_s=BOUND),
        Port(name="red/a/web", security_groups=("red/open",)),
        Port(name="red/a/client", security_groups=("red/open",)),
        Port(name="red/a/bound", security_groups=("red/open",), qos="red/slow"),
        NetworkGateway(name="red/out", snat=True),
        Eip(name="red/e1", address=ip_address("198.51.100.71")),
        Eip(name="red/e2", address=ip_address("198.51.100.72")),
        NatRule(name="red/own", kind=NatKind.FIP, eip="red/e1", port="red/a/web"),
        NatRule(
            name="red/http",
            kind=NatKind.DNAT,
            eip="red/e2",
            port="red/a/web",
            protocol=TransportProtocol.TCP,
            outside_number=80,
            inside_number=8000,
        ),
        LoadBalancer(
            name="red/site",
            vip=ip_address("10.0.1.100"),
            vip_number=80,
            backends=(Backend(port="red/a/web", number=8000),),
        ),
        Vpc(name="green", cidrs=(ip_network("10.1.0.0/16"),)),
        Subnet(name="green/a", cidrs=(ip_network("10.1.1.0/24"),)),
        SecurityGroup(name="green/open", rules=OPEN),
        Port(name="green/a/web", security_groups=("green/open",)),
        LoadBalancer(
            name="green/models",
            vip=ip_address("10.1.1.100"),
            vip_number=80,
            backends=(Backend(port="green/a/web", number=8000),),
        ),
        ServiceEndpoint(name="red/models", source="green/models", vip=ip_address("10.0.1.150")),
        Peering(name="red/green"),
        Peering(name="green/red"),
        DedicatedLine(
            name="red/dc",
            vlan=100,
            cidr=ip_network("192.0.2.0/29"),
            address=ip_address("192.0.2.1"),
            peer=ip_address("192.0.2.2"),
        ),
    )
    end = lab.customer("dc", ["192.0.2.2/29"], vlan=100)
    end.ip(("route", "add", "10.0.0.0/16", "via", "192.0.2.1"))
    found = {}
    with contextlib.ExitStack() as running:
        for name in ("red/a/web", "green/a/web", "red/a/client", "red/a/bound"):
            station = site.station("h1", name)
            if name.endswith("web"):
                running.enter_context(Banner(station, 8000, name))
            lab_namespaces.set_kernel(station.namespace, {"net/ipv4/ping_group_range": "0 0"})
            place = namespaces.path_of(station.namespace)
            found[name] = Probe(facts=facts_of(site.networks, name), host="h1", namespace=place)
        yield found


def tried(site: Site, made: dict[str, Probe]) -> dict[str, bool | None]:
    found = external.beyond(site.networks, "red", made["red/a/client"], lambda *_: made["green/a/web"])
    return {one.promise: one.held for one in found}


def test_what_cannot_be_told_from_inside_is_not_called_red(site: Site, made: dict[str, Probe]) -> None:
    shut = site.networks.put(Port(name="red/a/shut"))[0]
    shut = shut.put(Eip(name="red/e3", address=ip_address("198.51.100.73")))[0]
    shut = shut.put(NatRule(name="red/shut", kind=NatKind.FIP, eip="red/e3", port="red/a/shut"))[0]
    (found,) = [one for one in external.translations(shut, "red", made["red/a/client"]) if "red/shut" in one.promise]
    assert (found.held, found.detail) == (None, "no security group of red/a/shut admits traffic from outside")


def test_every_promise_holds_and_each_is_red_when_what_carries_it_out_is_gone(
    site: Site, lab: Lab, made: dict[str, Probe], monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = made["red/a/client"]
    assert tried(site, made) == dict.fromkeys(PROMISES, True)
    assert probe.dhcp_offer() == str(probe.address)
    monkeypatch.setattr(probes, "TRY_S", 0.5)  # what is looked for has gone, and waiting brings nothing
    lab.central.nbctl(
        "--wait=hv",
        *("lr-nat-del", "cb-red", "dnat_and_snat", "198.51.100.71", "--", "lb-del", "cb-red/http:dnat"),
        *("--", "lb-del", "cb-red/site", "--", "lb-del", "cb-red:endpoint:1"),
        *("--", "lr-route-del", "cb-red", "10.1.1.0/24", "--", "lrp-del", "red:line:dc:router"),
    )
    way_out = "gateway red/out leads to the outside"
    assert tried(site, made) == dict.fromkeys(PROMISES - {way_out}, False) | {way_out: True}
    lab.central.nbctl("--wait=hv", "lrp-del", "red:uplink:router")
    assert [one.held for one in external.gateways(site.networks, "red", probe)] == [False]
    lab.central.nbctl("--wait=hv", "--all", "destroy", "DHCP_Options")
    assert probe.dhcp_offer() == ""


def test_bound_of_a_rate_is_seen_and_its_loss_is(site: Site, lab: Lab, made: dict[str, Probe]) -> None:
    policy, bound, free = QosPolicy(name="red/slow", egress_bits_per_s=BOUND), made["red/a/bound"], made["red/a/client"]
    assert [(one.promise, one.held) for one in external.rates(policy, bound, free)] == [
        ("a port with red/slow sends at most 2 Mbit/s", True)
    ]
    lab.central.nbctl("--wait=hv", "qos-del", "cb-red/a")
    until(
        lambda: [one.held for one in external.rates(policy, bound, free)] == [False],
        what="the loss of the bound",
    )
