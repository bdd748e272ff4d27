"""Tests of an NFV gateway, nftables on two gateway hosts of which one has the addresses, with real packets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from ipaddress import ip_address, ip_network

import pytest
from tests.net import needs
from tests.net.flows import Echoes, Probe, Streams
from tests.net.realized_lab import RealizedLab, ReconciledHost, eventually, lose_host, restart_host
from tests.net.station_sockets import Banner, asked, pings

from calabash.adapters.links import namespaces
from calabash.controllers.appliances import processes
from calabash.controllers.lab import namespaces as lab_namespaces
from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.links import INTERNET_ADDRESS
from calabash.controllers.lab.station import Station
from calabash.model.network import (
    Direction,
    Eip,
    GatewayKind,
    NatKind,
    NatRule,
    NetworkGateway,
    NetworkKind,
    Port,
    SecurityGroup,
    SecurityRule,
    Subnet,
    Uplink,
    Vpc,
)
from calabash.model.network_services import TransportProtocol

HOSTS = ("h1",)
STREAMS = 20
FIP, DNAT = "198.51.100.71", "198.51.100.72"


@pytest.fixture(scope="module")
def realized(lab: Lab) -> Iterator[RealizedLab]:
    needs.need_appliances()
    tcp = SecurityRule(
        direction=Direction.INGRESS,
        protocol=TransportProtocol.TCP,
        ports=(8000, 8000),
        peer=ip_network("0.0.0.0/0"),
    )
    with RealizedLab(lab) as made:
        made.put(
            Uplink(name="up", cidr=ip_network("198.51.100.0/24"), gateway=ip_address("198.51.100.1")),
            Vpc(name="red", cidrs=(ip_network("10.0.0.0/16"),)),
            Subnet(name="red/a", cidrs=(ip_network("10.0.1.0/24"),)),
            SecurityGroup(name="red/web", rules=(tcp,)),
            Port(name="red/a/web1", security_groups=("red/default", "red/web")),
            NetworkGateway(name="red/out", kind=GatewayKind.NFV, snat=True),
            Eip(name="red/fip", address=ip_address(FIP)),
            Eip(name="red/dnat", address=ip_address(DNAT)),
            NatRule(name="red/own", kind=NatKind.FIP, eip="red/fip", port="red/a/web1"),
            NatRule(
                name="red/http",
                kind=NatKind.DNAT,
                eip="red/dnat",
                port="red/a/web1",
                protocol=TransportProtocol.TCP,
                outside_number=80,
                inside_number=8000,
            ),
            Port(name="red/a/web2"),
        )
        made.apply()
        yield made


@pytest.fixture(scope="module")
def kept(realized: RealizedLab) -> Iterator[dict[str, ReconciledHost]]:
    """Yield the gateway hosts, each with a replica of the gateway."""
    made = {host: ReconciledHost(realized, host, {}) for host in realized.lab.record.gateways}
    try:
        eventually(lambda: len(active(made)) == 1, "one replica has the address")
        yield made
    finally:
        for one in made.values():
            one.close()


@pytest.fixture(scope="module")
def web(realized: RealizedLab) -> Station:
    return realized.station("h1", "red/a/web1")


@pytest.fixture(scope="module")
def plain(realized: RealizedLab) -> Station:
    """Return a station without a floating address."""
    return realized.station("h1", "red/a/web2")


def active(kept: dict[str, ReconciledHost]) -> list[str]:
    """Return the hosts whose replica has the address."""
    return [host for host, one in kept.items() if any(state.active for state in one.states)]


def test_what_leaves_has_the_gateways_address_or_its_own_floating_one(
    realized: RealizedLab, kept: dict[str, ReconciledHost], web: Station, plain: Station
) -> None:
    (gateway,) = realized.networks.all(NetworkGateway)
    assert len(kept) == 2
    with Banner(realized.lab.world, 8000, "world"):
        eventually(lambda: asked(plain, INTERNET_ADDRESS, 8000, timeout_s=2).startswith("world"), "the world answers")
        assert asked(plain, INTERNET_ADDRESS, 8000) == f"world {gateway.address}"
        assert asked(web, INTERNET_ADDRESS, 8000) == f"world {FIP}"


def test_from_outside_comes_what_is_translated_and_let_in_and_nothing_else(
    realized: RealizedLab, kept: dict[str, ReconciledHost], web: Station
) -> None:
    world = realized.lab.world
    with Banner(web, 8000, "web1"), Banner(web, 8001, "closed"):
        eventually(lambda: asked(world, FIP, 8000, timeout_s=2).startswith("web1"), "the floating address answers")
        assert asked(world, DNAT, 80).startswith("web1")
        assert asked(world, FIP, 8001, timeout_s=1).startswith("no: ")  # no rule of its groups lets it in
        assert asked(world, DNAT, 8000, timeout_s=1).startswith("no: ")  # no translation
        (gateway,) = realized.networks.all(NetworkGateway)
        world.ip(("route", "add", "10.0.0.0/16", "via", gateway.address))
        try:
            assert asked(world, "10.0.1.2", 8000, timeout_s=1).startswith("no: ")  # not translated
        finally:
            world.ip(("route", "del", "10.0.0.0/16"))
        assert asked(world, FIP, 8000).startswith("web1")  # what the others would have come by
    assert len(active(kept)) == 1


def test_lost_gateway_host_costs_no_stream_and_does_not_take_the_address_back_when_it_returns(
    realized: RealizedLab, kept: dict[str, ReconciledHost], plain: Station
) -> None:
    lab = realized.lab
    (first,) = active(kept)
    with Echoes(lab.world, INTERNET_ADDRESS, 9000), Probe(plain, INTERNET_ADDRESS, 9000) as probe:
        eventually(lambda: probe.answered_since(0), "the probe is answered")
        with Streams(plain, INTERNET_ADDRESS, 9000, STREAMS) as streams:
            assert streams.lost() == 0
            lost_s = time.monotonic()
            lose_host(lab, first, kept[first])
            eventually(lambda: probe.answered_since(lost_s + 0.2), "the other replica has taken over")
            hole_s = probe.hole_s(lost_s)  # bench.net_gateways holds it to its goal
            assert streams.lost() == 0
            back_s = time.monotonic()
            restart_host(lab, first)
            kept[first].close()
            kept[first] = ReconciledHost(realized, first, {})
            eventually(lambda: settled(kept, first), "the returned replica runs")
            settled_s = time.monotonic()
            eventually(lambda: probe.answered_since(settled_s + 1.0), "packets pass")
            print(f"lost {hole_s:.3f} s, returned {probe.hole_s(back_s):.3f} s")
            assert first not in active(kept)
            assert streams.lost() == 0


def settled(kept: dict[str, ReconciledHost], host: str) -> bool:
    states = kept[host].states
    return bool(states) and all(not state.failure for state in states)


def test_killed_keeper_harms_nothing_and_the_next_mends_what_died_meanwhile(
    realized: RealizedLab, kept: dict[str, ReconciledHost], plain: Station
) -> None:
    eventually(lambda: len(active(kept)) == 1, "one replica has the address")
    (host,) = active(kept)
    kept[host].stop()
    with Banner(realized.lab.world, 8000, "world"):
        assert asked(plain, INTERNET_ADDRESS, 8000).startswith("world")
        (name,) = namespaces.names(kept[host].prefix)
        before = {process: command(process) for process in lab_namespaces.processes(name)}
        tracker = [process for process, words in before.items() if "conntrackd" in words]
        processes.end(tracker)
        old, kept[host] = kept[host], kept[host].again()
        eventually(
            lambda: any("conntrackd" in command(process) for process in lab_namespaces.processes(name)),
            "conntrackd runs again",
        )
        after = set(lab_namespaces.processes(name))
        assert set(before) - set(tracker) <= after  # what lived is the same
        assert asked(plain, INTERNET_ADDRESS, 8000).startswith("world")
    old.stop()


def command(process: int) -> str:
    try:
        with open(f"/proc/{process}/cmdline") as file:
            return file.read()
    except OSError:
        return ""


def test_gateway_that_is_deleted_leaves_nothing_on_its_hosts(
    realized: RealizedLab, kept: dict[str, ReconciledHost], plain: Station
) -> None:
    assert all(namespaces.names(one.prefix) for one in kept.values())
    for rule in ("red/own", "red/http"):
        realized.networks = realized.networks.remove(NetworkKind.NAT_RULE, rule)
    for eip in ("red/fip", "red/dnat"):
        realized.networks = realized.networks.remove(NetworkKind.EIP, eip)
    realized.networks = realized.networks.remove(NetworkKind.GATEWAY, "red/out")
    realized.apply()
    eventually(lambda: not any(namespaces.names(one.prefix) for one in kept.values()), "their namespaces are gone")
    eventually(lambda: not any(one.devices() for one in kept.values()), "no switch has a port of them")
    assert not pings(plain, INTERNET_ADDRESS, timeout_s=1)
