"""Tests that dead OVN daemons are reported in the condition READY of the VPCs that need them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from tests.daemons.world import until
from tests.net import needs
from tests.net.controller import Controller, vpc_with_ports

from calabash.adapters.ovn.open_vswitch import LocalSwitch
from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.record import register
from calabash.model.addresses import parse_address, parse_network
from calabash.model.network import NetworkGateway, NetworkKind, Uplink
from calabash.model.network_status import ConditionKind
from calabash.net.store.networks import Networks

WITHIN_S = 90.0


@pytest.fixture(scope="module")
def plane(lab_prefix: str) -> Iterator[Lab]:
    needs.need(packets=False)
    prefix = f"d{lab_prefix[1:]}"
    with Lab(
        prefix=prefix, directory=register() / prefix, hosts=("h1", "h2"), gateways=("g1", "g2"), dummy=True
    ) as made:
        yield made


@pytest.fixture(scope="module")
def controller(plane: Lab) -> Iterator[Controller]:
    """Run a controller for two VPCs: red has a port on h1 and a gateway, blue a port on h2, the controller's host."""
    networks = vpc_with_ports(vpc_with_ports(Networks(), "red", 1), "blue", 1)
    networks, _ = networks.put(
        Uplink(name="up", cidr=parse_network("198.51.100.0/24"), gateway=parse_address("198.51.100.1"))
    )
    networks, _ = networks.put(NetworkGateway(name="red/out", snat=True))
    for host, port in (("h1", "red/a/p0"), ("h2", "blue/a/p0")):
        plane.host(host).vsctl(
            "add-port", "br-int", "v0", "--", "set", "interface", "v0", f"external_ids:iface-id={port}"
        )
    switch = LocalSwitch(plane.host("h2").ovs_socket)
    with Controller(plane.northbound, plane.southbound, own_switch=("h2", lambda: switch.session.ready)) as made:
        made.realize(networks)
        until(lambda: ready(made, "red") == ready(made, "blue") == (True, "active"), within_s=WITHIN_S)
        yield made
    switch.close()


def ready(controller: Controller, vpc: str) -> tuple[bool | None, str]:
    return controller.condition(NetworkKind.VPC, vpc, ConditionKind.READY)[:2]


def message(controller: Controller, vpc: str) -> str:
    return controller.condition(NetworkKind.VPC, vpc, ConditionKind.READY)[2]


ALL_WORK = {"red": (True, "active"), "blue": (True, "active")}


@pytest.mark.parametrize(
    ("on", "daemon", "told"),
    [
        ("central", "nb", {"red": (False, "northbound_down"), "blue": (False, "northbound_down")}),
        ("central", "sb", {"red": (False, "southbound_down"), "blue": (False, "southbound_down")}),
        ("central", "northd", {"red": (False, "northd_down"), "blue": (False, "northd_down")}),
        ("h1", "ovn-controller", {"red": (False, "host_silent"), "blue": (True, "active")}),
        ("h2", "ovs-vswitchd", {"red": (True, "active"), "blue": (False, "host_silent")}),
        ("h2", "ovsdb-server", {"red": (True, "active"), "blue": (False, "host_silent")}),
        ("g1", "ovn-controller", {"red": (True, "host_silent"), "blue": (True, "active")}),
    ],
)
def test_dead_daemon_is_told_by_the_vpcs_that_need_it_until_it_runs_again(
    plane: Lab, controller: Controller, on: str, daemon: str, told: dict[str, tuple[bool, str]]
) -> None:
    owner = plane.central if on == "central" else plane.host(on)
    owner.kill(daemon)
    try:
        until(partial(all_are, controller, told), within_s=WITHIN_S, what=f"{told}")
        silent = [vpc for vpc, (_, reason) in told.items() if reason == "host_silent"]
        assert all(message(controller, vpc) == f"hosts that do not respond: {on}" for vpc in silent)
    finally:
        owner.start(daemon)
    until(partial(all_are, controller, ALL_WORK), within_s=WITHIN_S, what="all is well again")


def all_are(controller: Controller, told: dict[str, tuple[bool, str]]) -> bool:
    return {vpc: ready(controller, vpc) for vpc in told} == told
