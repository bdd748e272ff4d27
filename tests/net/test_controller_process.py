"""Tests of the controller as a process beside a pool: its start, its end with the pool, and kills at any moment."""

from __future__ import annotations

import functools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.api_client import PathClient
from tests.daemons.world import World, until
from tests.net import needs
from tests.net.controller import Controller, vpc_with_ports, write_networks

from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.record import register
from calabash.controllers.networks.main import LOCK_FILE
from calabash.controllers.networks.settings import (
    NETWORK_FILE,
    NetworkConnection,
    read_connection,
    remove_connection,
    write_connection,
)
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import NetworkKind, Port
from calabash.net.store.networks import Networks


@pytest.fixture
def plane(lab_prefix: str) -> Iterator[Lab]:
    """Start a control plane that moves no packets."""
    needs.need(packets=False)
    prefix = f"e{lab_prefix[1:]}"
    with Lab(prefix=prefix, directory=register() / prefix, hosts=("h1",), gateways=(), dummy=True) as made:
        yield made


def connection(plane: Lab) -> NetworkConnection:
    return NetworkConnection(northbound=plane.northbound, southbound=plane.southbound)


def pid_of(home: Path) -> int:
    """Return the PID of the controller; 0 if none runs."""
    try:
        pid = int((home / LOCK_FILE).read_text() or "0")
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return 0
    return pid if b"calabash.controllers.networks" in words else 0


def runs(home: Path, pid: int) -> bool:
    return pid_of(home) == pid


def realized(pool: PathClient, kind: str, name: str) -> bool:
    shown = pool.get(f"/v1/networks/objects/{kind}?name={name}")
    conditions = {c["kind"]: c["holds"] for c in shown["status"]["conditions"]}
    return bool(conditions.get("realized")) and shown["status"]["observed_generation"] == shown["generation"]


def put(pool: PathClient, kind: str, name: str, **spec: object) -> None:
    pool.put("/v1/networks/objects", {"kind": kind, "name": name, "spec": spec})


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "home")
    yield made
    made.close()


def test_pool_with_networks_keeps_its_controller_running(world: World, plane: Lab) -> None:
    world.up()
    pool = PathClient(world.home)
    assert pid_of(world.home) == 0
    write_connection(world.home, connection(plane))
    first = until(lambda: pid_of(world.home))
    put(pool, "vpc", "red", cidrs=["10.0.0.0/16"])
    put(pool, "subnet", "red/a", cidrs=["10.0.1.0/24"])
    put(pool, "port", "red/a/web1")
    until(lambda: realized(pool, "port", "red/a/web1"))
    assert "red/a/web1" in plane.central.nbctl("lsp-list", "cb-red/a")
    os.kill(first, signal.SIGKILL)
    put(pool, "port", "red/a/web2")
    until(lambda: realized(pool, "port", "red/a/web2"))
    second = pid_of(world.home)
    assert second not in {0, first}
    world.kill()
    until(lambda: not Path(f"/proc/{second}").exists(), what="the controller ends with its pool")
    assert "red/a/web2" in plane.central.nbctl("lsp-list", "cb-red/a")  # and networks stay as they are
    world.up()
    pool.delete("/v1/networks/objects/port?name=red/a/web1")
    until(lambda: "red/a/web1" not in plane.central.nbctl("lsp-list", "cb-red/a"))
    third = until(lambda: pid_of(world.home))
    remove_connection(world.home)
    until(lambda: not Path(f"/proc/{third}").exists())


def test_controller_that_is_killed_at_any_moment_leaves_nothing_half(plane: Lab, tmp_path: Path) -> None:
    chance = random.Random(7)
    file = tmp_path / "book.json"
    write_connection(tmp_path, connection(plane))
    networks = vpc_with_ports(Networks(), "v0")
    for number in range(8):
        for _ in range(chance.randrange(1, 6)):
            networks = changed(networks, chance)
        write_networks(file, networks)
        process = subprocess.Popen(
            [sys.executable, "-m", "calabash.controllers.networks", "--home", str(tmp_path), "--book", str(file)],
            stderr=subprocess.DEVNULL,
        )
        until(functools.partial(runs, tmp_path, process.pid))
        if number % 2:
            until(lambda: chance.random() < 0.02)  # some moments later
        process.kill()
        process.wait()
    with Controller(plane.northbound, plane.southbound) as controller:
        controller.realize(networks)
        assert controller.differences(networks) == []
        assert controller.reconciler.northbound.owners() - {"-"} == {vpc for vpc in networks.vpcs if vpc}


def changed(networks: Networks, chance: random.Random) -> Networks:
    """Return the networks with a random change: a VPC or a port is added or removed."""
    vpcs = [vpc for vpc in networks.vpcs if vpc]
    action = chance.randrange(4)
    if action == 0 or not vpcs:
        return vpc_with_ports(networks, f"v{networks.revision}")
    vpc = chance.choice(vpcs)
    if action == 1:
        return networks.remove(NetworkKind.VPC, vpc, cascade=True)
    ports = list(networks.of_vpc(vpc).all(Port))
    if action == 2 and ports:
        return networks.remove(NetworkKind.PORT, chance.choice(ports))
    return networks.put(Port(name=f"{vpc}/a/r{networks.revision}"))[0]


def test_settings_are_read_as_they_were_written_and_refused_where_they_cannot_be_meant(tmp_path: Path) -> None:
    assert read_connection(tmp_path) is None
    whole = NetworkConnection(
        northbound="tcp:127.0.0.1:6641,tcp:127.0.0.1:6651",
        southbound="ssl:127.0.0.1:6642",
        ca="/ca",
        certificate="/c",
        key="/k",
        gateways=["g1"],
        protected=["172.30.0.0/24"],
    )
    write_connection(tmp_path, whole)
    assert read_connection(tmp_path) == whole
    for text in (
        "northbound = 1",
        'northbound = "http://x"\nsouthbound = "unix:/s"',
        'northbound = "unix:/n"\nsouthbound = "unix:/s"\nca = "/ca"',
        'northbound = "unix:/n"\nsouthbound = "unix:/s"\nprotected = ["10.0.0.1/8"]',
        'northbound = "unix:/n"\nsouthbound = "unix:/s"\ncolour = "red"',
        "northbound",
    ):
        (tmp_path / NETWORK_FILE).write_text(text)
        with pytest.raises(CalabashError) as bad:
            read_connection(tmp_path)
        assert bad.value.reason is Reason.BAD_FILE
        assert NETWORK_FILE in bad.value.message


def test_only_one_controller_runs_for_a_home(plane: Lab, tmp_path: Path) -> None:
    file = tmp_path / "book.json"
    write_networks(file, Networks())
    write_connection(tmp_path, connection(plane))
    command = [sys.executable, "-m", "calabash.controllers.networks", "--home", str(tmp_path), "--book", str(file)]
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        until(lambda: pid_of(tmp_path) == first.pid)
        second = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert second.returncode == 1
        assert "error [conflict]: another network controller is running" in second.stderr
        first.terminate()
        assert first.wait(60) == 0
    finally:
        first.kill()
        first.wait()
