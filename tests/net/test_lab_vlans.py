"""Tests of customers on VLANs of the provider's network: they are reachable, and isolated from each other."""

from __future__ import annotations

from tests.net.station_sockets import Banner, asked, pings

from calabash.controllers.lab.lab import Lab

HOSTS, GATEWAYS = ("h1",), ()


def test_customers_meet_on_their_vlan_and_nowhere_else(lab: Lab) -> None:
    one = lab.customer("one", ["192.0.2.1/24"], vlan=100)
    two = lab.customer("two", ["192.0.2.2/24"], vlan=100)
    other = lab.customer("other", ["192.0.2.3/24"], vlan=200)
    plain = lab.customer("plain", ["192.0.2.4/24"])
    with Banner(one, 8000, "one"):
        assert asked(two, "192.0.2.1", 8000, timeout_s=60) == "one 192.0.2.2"
        for unreachable in (other, plain):
            assert not pings(unreachable, "192.0.2.1", timeout_s=0.5)
    lab.world.ip(("address", "add", "192.0.2.5/24", "dev", "x0"))
    assert pings(plain, "192.0.2.5")


def test_vlan_reaches_a_host_with_its_tag(lab: Lab) -> None:
    customer = lab.customer("tagged", ["192.0.2.65/26"], vlan=300)
    host = lab.host("h1")
    host.vsctl("add-port", "br-ex", "in300", "tag=300", "--", "set", "Interface", "in300", "type=internal")
    lab.run("h1", "ip", "address", "add", "192.0.2.66/26", "dev", "in300")
    lab.run("h1", "ip", "link", "set", "in300", "up")
    assert pings(customer, "192.0.2.66")
