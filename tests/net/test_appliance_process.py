"""Tests of the process that reconciles the appliances of a lab: start, kill and restart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from tests.net import needs
from tests.net.controller import write_networks
from tests.net.realized_lab import RealizedLab, eventually
from tests.net.station_sockets import Banner, asked

from calabash.controllers.lab import namespaces
from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.links import INTERNET_ADDRESS
from calabash.controllers.lab.record import register
from calabash.model.network import GatewayKind, NetworkGateway, Port, Subnet, Uplink, Vpc, kind_of
from calabash.model.network_services import Backend, Layer, LoadBalancer
from calabash.net.objects.specs import encode
from calabash.net.store.networks import Networks

HOSTS = ("h1",)


@pytest.fixture
def realized(lab: Lab) -> Iterator[RealizedLab]:
    needs.need_appliances()
    with RealizedLab(lab) as made:
        made.put(
            Uplink(name="up", cidr=ip_network("198.51.100.0/24"), gateway=ip_address("198.51.100.1")),
            Vpc(name="red", cidrs=(ip_network("10.0.0.0/16"),)),
            Subnet(name="red/a", cidrs=(ip_network("10.0.1.0/24"),)),
            Port(name="red/a/web1"),
            NetworkGateway(name="red/out", kind=GatewayKind.NFV, snat=True),
        )
        made.apply()
        yield made


def two_pairs() -> Networks:
    """Return networks with an NFV gateway and a layer 7 balancer, which are appliances."""
    networks = Networks()
    for item in (
        Uplink(name="up", cidr=ip_network("198.51.100.0/24"), gateway=ip_address("198.51.100.1")),
        Vpc(name="red", cidrs=(ip_network("10.0.0.0/16"),)),
        Subnet(name="red/a", cidrs=(ip_network("10.0.1.0/24"),)),
        Port(name="red/a/web1"),
        NetworkGateway(name="red/out", kind=GatewayKind.NFV, snat=True),
        LoadBalancer(
            name="red/l7",
            layer=Layer.L7,
            vip=ip_address("10.0.1.9"),
            vip_number=80,
            backends=(Backend(port="red/a/web1", number=80),),
        ),
    ):
        networks, _ = networks.put(item)
    return networks


def started(home: Path, file: Path, lab: Lab) -> subprocess.Popen[bytes]:
    words = ["--home", str(home), "--book", str(file), "--lab", lab.record.prefix]
    with open(home / "said", "ab") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "calabash.controllers.appliances", *words], stdout=said, stderr=said
        )


def test_killed_process_leaves_its_gateway_at_work_and_the_next_takes_it_over(
    realized: RealizedLab, lab: Lab, tmp_path: Path
) -> None:
    file = tmp_path / "book.json"
    objects = [
        {"kind": kind_of(item).value, "name": item.name, "generation": 1, "spec": encode(item)}
        for item in realized.networks.items()
    ]
    file.write_text(json.dumps({"revision": 1, "whole": True, "objects": objects, "removed": []}))
    web = realized.station("h1", "red/a/web1")
    first = started(tmp_path, file, lab)
    with Banner(lab.world, 8000, "world"):

        def reaches() -> bool:
            return asked(web, INTERNET_ADDRESS, 8000, timeout_s=2).startswith("world")

        try:
            eventually(reaches, "the gateway translates", told=(tmp_path / "said").read_text)
        finally:
            first.send_signal(signal.SIGKILL)
            first.wait()
        assert reaches()
        second = started(tmp_path, file, lab)
        try:
            file.write_text(json.dumps({"revision": 2, "whole": True, "objects": [], "removed": []}))
            eventually(lambda: not reaches(), "the next one takes the gateway away")
        finally:
            second.terminate()
            second.wait()


@pytest.mark.parametrize("killed", [False, True], ids=["its keeper lives", "its keeper was killed"])
def test_lab_that_ends_takes_its_appliances_with_it(lab_prefix: str, tmp_path: Path, killed: bool) -> None:
    needs.need_appliances()
    own = "k" + lab_prefix[1:]
    file, said = tmp_path / "book.json", tmp_path / "said"
    write_networks(file, two_pairs())
    with Lab(prefix=own, directory=register() / own, hosts=("h1",), gateways=("g1",)) as lab:
        keeper = started(tmp_path, file, lab)
        try:
            eventually(lambda: len(namespaces.named(f"{own}-g1x")) == 4, "all replicas are there", told=said.read_text)
            if killed:
                keeper.kill()
                keeper.wait()
            down = [str(Path(sys.executable).parent / "calabash"), "net", "down", "--prefix", own]
            home = {**os.environ, "CALABASH_HOME": str(tmp_path)}
            subprocess.run(down, check=True, stdout=subprocess.DEVNULL, env=home, timeout=60)
            eventually(lambda: keeper.poll() is not None, "a keeper ends with its lab")
        finally:
            keeper.kill()
            keeper.wait()
    assert namespaces.named(f"{own}-") == []
    assert not lab.directory.exists()
