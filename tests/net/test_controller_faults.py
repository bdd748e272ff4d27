"""Tests of crashes of the control plane while packets flow: none is lost, and OVN gets its configuration again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.daemons.world import until
from tests.net.controller import Controller, vpc_with_ports
from tests.net.stream import Stream

from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.station import Station
from calabash.model.network import Port
from calabash.net.store.networks import Networks

GATEWAYS = ()


@pytest.fixture(scope="module")
def networks() -> Networks:
    return vpc_with_ports(Networks(), "red")


@pytest.fixture(scope="module")
def pair(lab: Lab, networks: Networks) -> Iterator[tuple[Station, Station]]:
    """Create two stations of one VPC on two hosts."""
    with Controller(lab.northbound, lab.southbound) as controller:
        controller.realize(networks)
    made = []
    for name, host in (("red/a/p0", "h1"), ("red/a/p1", "h2")):
        port = networks.find(Port, name)
        assert port is not None
        made.append(lab.station(host, name, port.mac, [f"{port.addresses[0]}/24"]))
    yield made[0], made[1]
    for station in made:
        station.remove()


@pytest.fixture
def flowing(pair: tuple[Station, Station]) -> Stream:
    """Return a stream of frames between the stations, after waiting until frames pass."""

    def passes() -> bool:
        with Stream(*pair) as stream:  # tried again until the path is there
            until(lambda: stream.sent > 20)
        return stream.lost == 0

    until(passes, within_s=120.0)
    return Stream(*pair, last_s=60.0)


def test_central_dies_and_comes_back_without_a_lost_packet(lab: Lab, networks: Networks, flowing: Stream) -> None:
    with Controller(lab.northbound, lab.southbound) as controller:
        controller.realize(networks)
        with flowing:
            for daemon in ("northd", "nb", "sb"):
                lab.central.kill(daemon)
            sent = flowing.sent
            until(lambda: flowing.sent > sent + 100)
            lab.central.up()
            until(lambda: controller.reconciler.northbound.session.ready)
            more = networks.put(Port(name="red/a/after"))[0]
            controller.realize(more)
            assert controller.differences(more) == []
        assert flowing.lost == 0, f"{flowing.lost} of {flowing.sent}, longest hole {flowing.hole_s:.3f} s"


def test_controllers_of_hosts_and_of_networks_die_without_a_lost_packet(
    lab: Lab, networks: Networks, flowing: Stream
) -> None:
    with flowing:
        with Controller(lab.northbound, lab.southbound) as controller:
            controller.realize(networks)
        for host in ("h1", "h2"):
            lab.host(host).kill("ovn-controller")
        sent = flowing.sent
        until(lambda: flowing.sent > sent + 100)
        for host in ("h1", "h2"):
            lab.host(host).start("ovn-controller")
        with Controller(lab.northbound, lab.southbound) as controller:
            controller.realize(networks)
            beat = controller.reconciler.northbound.beat()
            until(lambda: all(one.nb_cfg >= beat for one in controller.reconciler.southbound.chassis()))
    assert flowing.lost == 0, f"{flowing.lost} of {flowing.sent}, longest hole {flowing.hole_s:.3f} s"


def test_killed_switch_takes_its_traffic_up_again_by_itself(lab: Lab, networks: Networks, flowing: Stream) -> None:
    with flowing:
        lab.host("h1").kill("ovs-vswitchd")
        lab.host("h1").start("ovs-vswitchd")
        sent = flowing.sent
        until(lambda: flowing.sent > sent + 400)
    assert 0 < flowing.lost < flowing.sent
