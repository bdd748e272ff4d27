"""Tests that a VPC's gateway survives the loss of one of OVN's two gateway hosts, with real packets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from ipaddress import ip_address, ip_network

import pytest
from tests.net.controller import Controller
from tests.net.flows import Echoes, Probe, Streams
from tests.net.realized_lab import RealizedLab, eventually, lose_host, restart_host
from tests.net.station_sockets import Banner, asked

from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.links import INTERNET_ADDRESS
from calabash.controllers.lab.station import Station
from calabash.model.errors import CalabashError
from calabash.model.network import NetworkGateway, Port, Subnet, Uplink, Vpc

HOSTS = ("h1",)
STREAMS = 20


@pytest.fixture(scope="module")
def realized(lab: Lab) -> Iterator[RealizedLab]:
    with RealizedLab(lab) as made:
        made.put(
            Uplink(name="up", cidr=ip_network("198.51.100.0/24"), gateway=ip_address("198.51.100.1"), vpcs_max=2),
            Vpc(name="red", cidrs=(ip_network("10.0.0.0/16"),)),
            Subnet(name="red/a", cidrs=(ip_network("10.0.1.0/24"),)),
            Port(name="red/a/web1"),
            NetworkGateway(name="red/out", snat=True),
        )
        made.apply()
        yield made


@pytest.fixture(scope="module")
def web(realized: RealizedLab) -> Station:
    return realized.station("h1", "red/a/web1")


def gateway_of(lab: Lab, vpc: str) -> str:
    """Return the host that carries a VPC's gateway port."""
    found = lab.central.sbctl(
        "--bare", "--columns=chassis", "find", "Port_Binding", f'logical_port="cr-{vpc}:uplink:router"'
    )
    return (
        lab.central.sbctl("--bare", "--columns=name", "list", "Chassis", found.strip()).strip() if found.strip() else ""
    )


def reaches(web: Station) -> bool:
    return asked(web, INTERNET_ADDRESS, 8000, timeout_s=2).startswith("world")


def test_what_leaves_has_the_gateways_address(realized: RealizedLab, web: Station) -> None:
    (gateway,) = realized.networks.all(NetworkGateway)
    with Banner(realized.lab.world, 8000, "world"):
        eventually(lambda: reaches(web), "the world answers")
        assert asked(web, INTERNET_ADDRESS, 8000) == f"world {gateway.address}"


def test_one_uplink_has_no_more_vpcs_than_it_bears_and_the_next_gets_them(realized: RealizedLab) -> None:
    def vpc(number: int) -> NetworkGateway:
        realized.put(
            Vpc(name=f"v{number}", cidrs=(ip_network("10.0.0.0/16"),)),
            Subnet(name=f"v{number}/a", cidrs=(ip_network("10.0.1.0/24"),)),
        )
        (made,) = realized.put(NetworkGateway(name=f"v{number}/out", snat=True))
        assert isinstance(made, NetworkGateway)
        return made

    assert vpc(1).uplink == "up"
    with pytest.raises(CalabashError, match="uplink"):
        vpc(2)
    realized.put(Uplink(name="up2", cidr=ip_network("203.0.114.0/24"), gateway=ip_address("203.0.114.1"), vlan=7))
    assert vpc(3).uplink == "up2"
    realized.apply()
    switches = realized.lab.central.nbctl("--bare", "--columns=name", "list", "Logical_Switch").split()
    assert {"cb:uplink:up", "cb:uplink:up2"} <= set(switches)


def test_lost_gateway_host_costs_no_stream_rests_when_it_returns_and_takes_its_place_again(
    realized: RealizedLab, web: Station
) -> None:
    lab = realized.lab
    realized.north.close()  # from here on the controller carries out
    with Echoes(lab.world, INTERNET_ADDRESS, 9000), Probe(web, INTERNET_ADDRESS, 9000) as probe:
        with Controller(lab.northbound, lab.southbound, rest_s=3600) as controller:
            controller.realize(realized.networks)
            # Until the first host of its order has heard of the others, another one may carry the port for a moment.
            eventually(
                lambda: gateway_of(lab, "red") in orders(controller)[:1], "the first gateway host carries the port"
            )
            first = gateway_of(lab, "red")
            eventually(lambda: probe.answered_since(0), "the probe is answered")
            streams = Streams(web, INTERNET_ADDRESS, 9000, STREAMS)
            lost_s = time.monotonic()
            lose_host(lab, first)
            eventually(lambda: probe.answered_since(lost_s + 0.2), "the other host has taken over")
            assert streams.lost() == 0
            eventually(lambda: rests(controller, first), "the lost host rests")
            restart_host(lab, first)
            eventually(lambda: all_tunnels_up(lab, first), "the returned host has its tunnels")
            settled_s = time.monotonic()
            eventually(lambda: probe.answered_since(settled_s + 1.0), "packets pass")
            assert gateway_of(lab, "red") != first
        with streams, Controller(lab.northbound, lab.southbound, rest_s=1) as controller:
            controller.take(realized.networks)
            eventually(lambda: gateway_of(lab, "red") == first, "it has its place again")
            again_s = time.monotonic()
            eventually(lambda: probe.answered_since(again_s + 1.0), "packets pass")
            print(f"fail-back {probe.hole_s(settled_s):.3f} s")  # bench.net_gateways holds it to its goal
            assert streams.lost() == 0


def orders(controller: Controller) -> tuple[str, ...]:
    """Return the gateway hosts of the VPC's port in the order of the rows."""
    return controller.reconciler.northbound.gateway_orders().get("red:uplink:router", ())


def rests(controller: Controller, host: str) -> bool:
    """Return True if only this host is resting, and the rows have it last."""
    return controller.reconciler.surroundings.hosts.resting == (host,) == orders(controller)[1:]


def all_tunnels_up(lab: Lab, host: str) -> bool:
    """Return True if BFD of all tunnels of a host reports that the other end is alive."""
    said = lab.host(host).vsctl("--bare", "--columns=bfd_status", "find", "Interface", "type=geneve").split("\n\n")
    return len(said) == len(lab.hosts) - 1 and all("state=up" in one.replace("remote_state=up", "") for one in said)
