"""Ports on the switch of this host: they are added and removed in its own database, and ports of others are not changed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.daemons.world import until
from tests.net import needs

from calabash.adapters.ovn.open_vswitch import LocalSwitch
from calabash.adapters.ovn.southbound import Southbound
from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.record import register
from calabash.model.errors import CalabashError, Reason


@pytest.fixture(scope="module")
def plane(lab_prefix: str) -> Iterator[Lab]:
    """A control plane that moves no packets; its switch takes devices of any name."""
    needs.need(packets=False)
    prefix = f"f{lab_prefix[1:]}"
    with Lab(prefix=prefix, directory=register() / prefix, hosts=("h1",), gateways=("g1",), dummy=True) as made:
        yield made


@pytest.fixture
def switch(plane: Lab) -> Iterator[LocalSwitch]:
    made = LocalSwitch(plane.host("h1").ovs_socket)
    yield made
    made.close()


def test_port_is_there_once_however_often_it_is_asked_for(switch: LocalSwitch, plane: Lab) -> None:
    for _ in range(2):
        port = switch.ensure_port("v0", "red/a/web1", told={"attached-mac": "0a:00:00:00:00:01"})
        assert (port.iface_id, port.ours, port.number > 0) == ("red/a/web1", True, True)
    assert port.told["attached-mac"] == "0a:00:00:00:00:01"
    assert plane.host("h1").vsctl("list-ports", "br-int").split().count("v0") == 1
    assert switch.ensure_port("v0", "red/a/web2").iface_id == "red/a/web2"  # the device is another port's now
    assert switch.remove_port("v0")
    assert not switch.remove_port("v0")
    assert "v0" not in switch.ports()


def test_one_logical_port_is_not_at_two_devices_of_a_host(switch: LocalSwitch) -> None:
    switch.ensure_port("v1", "red/a/web1")
    with pytest.raises(CalabashError, match="port red/a/web1 is at v1 on this host already") as refused:
        switch.ensure_port("v2", "red/a/web1")
    assert refused.value.reason is Reason.CONFLICT
    switch.remove_port("v1")


def test_ports_of_others_are_neither_taken_nor_removed(switch: LocalSwitch, plane: Lab) -> None:
    for number in range(10):  # the copy that the switch decides by is at times older than the port
        name = f"theirs{number}"
        plane.host("h1").vsctl("--no-wait", "add-port", "br-int", name)
        with pytest.raises(CalabashError, match=f"port {name} of the switch belongs to another program"):
            switch.ensure_port(name, "red/a/web1")
        with pytest.raises(CalabashError, match="belongs to another program"):
            switch.remove_port(name)
        plane.host("h1").vsctl("del-port", name)


def test_bridge_that_is_not_there_and_a_database_that_does_not_answer_are_told(switch: LocalSwitch, plane: Lab) -> None:
    with pytest.raises(CalabashError, match="no bridge br-none") as absent:
        switch.ensure_port("v0", "red/a/web1", bridge="br-none")
    assert absent.value.reason is Reason.NOT_FOUND
    nobody = LocalSwitch(f"unix:{plane.directory}/none.sock", timeout_s=0.2)
    try:
        with pytest.raises(CalabashError) as down:
            nobody.ports()
        assert down.value.reason is Reason.UNREACHABLE
    finally:
        nobody.close()


def test_host_tells_what_it_is(switch: LocalSwitch) -> None:
    assert switch.settings()["system-id"] == "h1"


def test_hosts_and_where_ports_are_are_known_from_the_southbound_database(switch: LocalSwitch, plane: Lab) -> None:
    southbound = Southbound(plane.southbound)
    try:
        southbound.session.wait_ready(30.0)
        assert [one.name for one in southbound.chassis()] == ["g1", "h1"]
        assert all(one.addresses for one in southbound.chassis())
        plane.central.nbctl("ls-add", "s", "--", "lsp-add", "s", "p")
        switch.ensure_port("v9", "p")
        until(lambda: southbound.hosts_of_ports() == {"p": "h1"})
        switch.remove_port("v9")
        until(lambda: southbound.hosts_of_ports() == {})
    finally:
        southbound.close()
