"""Tests of ``calabash net doctor``: each requirement of networks is removed once, and reported."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemons.world import World, until
from tests.net import needs
from tests.net.test_controller_process import connection, pid_of, put, realized

from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.record import register
from calabash.controllers.networks.doctor import examine
from calabash.controllers.networks.settings import NETWORK_FILE, write_connection


@pytest.fixture
def plane(lab_prefix: str) -> Iterator[Lab]:
    needs.need(packets=False)
    prefix = f"g{lab_prefix[1:]}"
    with Lab(prefix=prefix, directory=register() / prefix, hosts=("h1",), gateways=("g1",), dummy=True) as made:
        yield made


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "home")
    made.up()
    yield made
    made.close()


def found(world: World, switch: str = "", *, patience_s: float = 0.5) -> dict[str, tuple[str, str]]:
    """Return the results by check. ``patience_s`` is short, as broken parts do not recover by waiting."""
    return {f.check: (f.result, f.text) for f in examine(world.home, world.client, switch, patience_s=patience_s)}


def test_what_is_wrong_is_named_and_what_is_well_is_said(world: World, plane: Lab) -> None:
    assert found(world) == {"settings": ("fail", f"{world.home} has no {NETWORK_FILE}: this pool has no networks")}
    write_connection(world.home, connection(plane))
    until(lambda: pid_of(world.home))
    put(world.client, "vpc", "red", cidrs=["10.0.0.0/16"])
    put(world.client, "subnet", "red/a", cidrs=["10.0.1.0/24"])
    put(world.client, "port", "red/a/web1")
    until(lambda: realized(world.client, "port", "red/a/web1"))
    switch = plane.host("h1").ovs_socket
    plane.host("h1").vsctl("add-port", "br-int", "v0", "--", "set", "interface", "v0", "external_ids:iface-id=x")
    results = found(world, switch, patience_s=60.0)
    assert {check: text for check, (result, text) in results.items() if result != "ok"} == {}
    assert results["pool"][1].startswith("1 VPCs, 4 objects")
    assert results["hosts"] == ("ok", "2 of 2 respond")

    plane.host("g1").kill("ovn-controller")
    until(lambda: found(world)["hosts"] == ("fail", "1 of 2 respond; silent: g1"), what="the silent host is named")
    plane.host("g1").start("ovn-controller")

    plane.central.kill("northd")
    put(world.client, "port", "red/a/web2")
    until(lambda: "red/a/web2" in plane.central.nbctl("lsp-list", "cb-red/a"))
    assert found(world)["northd"][0] == "fail"
    plane.central.start("northd")

    controller = pid_of(world.home)
    os.kill(controller, signal.SIGSTOP)  # so that nobody repairs
    plane.central.nbctl("lsp-del", "red/a/web1")
    until(
        lambda: found(world).get("rows") == ("fail", "OVN differs from the desired rows for 1: red"),
        what="the missing row",
    )
    os.kill(controller, signal.SIGCONT)

    plane.central.kill("nb")
    broken = found(world)
    assert broken["northbound"][0] == "fail"
    assert "rows" not in broken
    (world.home / NETWORK_FILE).unlink()
    until(lambda: not Path(f"/proc/{controller}").exists())
    write_connection(world.home, connection(plane))
    world.kill()
    gone = found(world)
    assert gone["pool"][0] == gone["controller"][0] == "fail"
