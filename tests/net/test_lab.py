"""Tests of the lab with rows written by hand: start, packets, restarted daemons, and clean-up."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from tests.daemons.world import until
from tests.net.packets import IPV4, UDP, Sniffer, ethernet, ip, send, udp
from tests.net.station_sockets import Banner, asked, pings

from calabash.adapters.links import queues
from calabash.controllers.lab import namespaces
from calabash.controllers.lab.host import LabHost
from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.record import register
from calabash.controllers.lab.station import Station
from calabash.node.ports.switch import OwnedPorts

A_MAC, B_MAC = "0a:00:00:00:00:01", "0a:00:00:00:00:02"


@pytest.fixture(scope="module")
def pair(lab: Lab) -> tuple[Station, Station]:
    """Create two stations on two hosts, on one switch."""
    nb = lab.central.nbctl
    nb("ls-add", "s")
    for port, mac, address in (("s/a/one", A_MAC, "10.0.1.11"), ("s/a/two", B_MAC, "10.0.1.12")):
        nb("lsp-add", "s", port, "--", "lsp-set-addresses", port, f"{mac} {address}")
    made = (
        lab.station("h1", "s/a/one", A_MAC, ["10.0.1.11/24"]),
        lab.station("h2", "s/a/two", B_MAC, ["10.0.1.12/24"]),
    )
    for station in made:
        nb("wait-until", "Logical_Switch_Port", station.port, "up=true")
    return made


def test_all_daemons_run_and_every_host_is_a_chassis(lab: Lab) -> None:
    assert all(lab.daemons().values()), lab.daemons()
    chassis = lab.central.sbctl("--bare", "--columns=name", "list", "Chassis").split()
    assert sorted(chassis) == sorted(lab.hosts)


def test_two_stations_on_two_hosts_talk(lab: Lab, pair: tuple[Station, Station]) -> None:
    one, two = pair
    with Banner(two, 8000, "two"):
        assert asked(one, "10.0.1.12", 8000) == "two 10.0.1.11"
    assert pings(two, "10.0.1.11")


def test_sniffer_sees_a_frame_made_by_hand(pair: tuple[Station, Station]) -> None:
    one, two = pair
    body = udp("10.0.1.11", "10.0.1.12", (5000, 5001), b"canary")
    with Sniffer(two) as sniffer:
        send(one, ethernet(A_MAC, B_MAC, IPV4, ip("10.0.1.11", "10.0.1.12", UDP, body)))
        assert sniffer.wait(b"canary")


def test_killed_switch_comes_back_with_its_tunnels(lab: Lab, pair: tuple[Station, Station]) -> None:
    one, _ = pair
    host = lab.host("h2")
    host.kill("ovs-vswitchd")
    assert not host.daemon("ovs-vswitchd").pid
    host.start("ovs-vswitchd")
    assert pings(one, "10.0.1.12", timeout_s=60)


def test_every_card_of_a_switch_has_a_long_receive_queue(lab: Lab, pair: tuple[Station, Station]) -> None:
    """Bursts of TCP are lost on queues of the kernel's default length; that of the machine stays as it is."""
    machine = Path("/proc/sys/net/core/rmem_default").read_text()
    host = lab.host("h1")
    assert _long_queues(host) == 3  # the cards u0 and x0, and the station's
    host.kill("ovs-vswitchd")
    host.start("ovs-vswitchd")
    assert _long_queues(host) == 3
    assert Path("/proc/sys/net/core/rmem_default").read_text() == machine


def test_agents_ports_get_long_receive_queues_too(lab: Lab) -> None:
    host = lab.host("h2")
    before = _long_queues(host)
    lab.central.nbctl("lsp-add", "s", "s/a/three")
    namespaces.ip([("link", "add", "agents", "type", "veth", "peer", "name", "program")], name=host.namespace)
    namespaces.ip([("link", "set", "agents", "up")], name=host.namespace)
    ports = OwnedPorts(host.ovs_socket, Path("/run/netns", host.namespace))
    try:
        ports.plug("agents", iface_id="s/a/three", owner="somebody")
        until(lambda: ports.up("agents"), within_s=60, what="the port is carried out")
        assert _long_queues(host) > before
    finally:
        ports.close()


def test_up_again_starts_what_does_not_run(lab: Lab) -> None:
    lab.central.kill("northd")
    lab.host("g1").kill("ovn-controller")
    before = lab.daemons()
    lab.up()
    after = lab.daemons()
    assert all(after.values())
    assert {name for name in after if after[name] != before[name]} == {"central/northd", "g1/ovn-controller"}


def test_down_leaves_nothing(lab_prefix: str, tmp_path: Path) -> None:
    other = Lab(prefix="u" + lab_prefix[1:], directory=tmp_path / "l", hosts=("h1",), gateways=())
    with other:
        other.central.kill("sb")
        assert len(namespaces.named(other.record.prefix + "-")) == 4
    assert namespaces.named(other.record.prefix + "-") == []
    assert not (tmp_path / "l").exists()
    assert Lab.of_prefix(other.record.prefix) is None
    assert list(register().glob(f"{other.record.prefix}*")) == []


def _long_queues(host: LabHost) -> int:
    """A switch has one more such socket, by which it only sends."""
    copies = queues._copies(host.daemon("ovs-vswitchd").pid)
    return sum(each.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= queues.QUEUE_BYTES for each in copies)
