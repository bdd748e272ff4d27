"""Tests that OVN's database, northd and a host accept the rows of random networks without a warning."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemons.world import until
from tests.net import needs
from tests.net.ovn_queries import ports_up
from tests.unit.net.random_networks import RandomNetworks

from calabash.adapters.ovn.northbound import Northbound
from calabash.controllers.lab.lab import Lab
from calabash.controllers.networks.desired_rows import Surroundings, owner_rows
from calabash.model.network import Port
from calabash.net.objects.collection import SHARED
from calabash.net.ovn.northbound.changes import diff
from calabash.net.ovn.northbound.rows import PLATFORM
from calabash.net.ovn.translation.view import NetworkHosts
from calabash.net.store.networks import Networks

AROUND = Surroundings(hosts=NetworkHosts(gateways=("g1",)))
SEEDS, CHANGES = (3, 14, 15), 300
# What northd says of rows, and hosts of flows made of them; not of connections that end, or of being busy.
COMPLAINTS = {
    "northd.log": re.compile(r"\|(?!jsonrpc|reconnect|poll_loop|timeval|coverage|inc_proc)\w+\|(WARN|ERR)\|"),
    "ovn-controller.log": re.compile(r"\|(lflow|expr|actions)\|(WARN|ERR)\|"),
}


@pytest.fixture
def plane(lab_prefix: str) -> Iterator[Lab]:
    needs.need(packets=False)
    directory = Path("/tmp") / f"cb-{lab_prefix}r"
    with Lab(prefix=f"{lab_prefix}r", directory=directory, hosts=("h1",), gateways=("g1",), dummy=True) as made:
        yield made


def test_random_networks_are_accepted_by_ovn_without_a_warning(plane: Lab) -> None:
    northbound = Northbound(plane.northbound)
    try:
        northbound.session.wait_ready(30.0)
        for seed in SEEDS:
            _carried(plane, northbound, RandomNetworks(seed, removing=0.1).made(Networks(), CHANGES))
    finally:
        northbound.close()
    complaints = [
        line
        for log in plane.directory.rglob("*.log")
        for line in log.read_text(errors="replace").splitlines()
        if log.name in COMPLAINTS and COMPLAINTS[log.name].search(line)
    ]
    assert complaints == []


def _carried(plane: Lab, northbound: Northbound, networks: Networks) -> None:
    """Write the rows of the networks, bind all ports at one host, and return when the host has processed them."""
    for owner in {PLATFORM, *networks.vpcs, *northbound.owners()} - {SHARED}:
        if changes := diff(owner_rows(networks, owner, AROUND), northbound.actual(owner)):
            northbound.apply(changes)
    names = {port.name for port in networks.all(Port) if not port.virtual_parents}
    words: list[str] = []
    for number, name in enumerate(sorted(names)):
        words += ["--", "add-port", "br-int", f"p{number}"]
        words += ["--", "set", "interface", f"p{number}", f"external_ids:iface-id={name}"]
    plane.host("h1").vsctl(*words[1:])
    plane.central.nbctl("--wait=hv", "sync", timeout_s=60)
    until(lambda: names <= ports_up(northbound), what="every port is up")
    plane.host("h1").vsctl("del-br", "br-int")
    plane.central.nbctl("--wait=hv", "sync", timeout_s=60)
