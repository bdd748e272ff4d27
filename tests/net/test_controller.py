"""Tests of the network controller with a complete OVN control plane that moves no packets; root is not needed."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from tests.daemons.world import until
from tests.net import needs
from tests.net.controller import Controller, vpc_with_ports

from calabash.adapters.ovn.northbound import GLOBAL
from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.record import register
from calabash.controllers.networks import reconciler as reconciling
from calabash.controllers.networks.desired_rows import Surroundings, owner_rows
from calabash.model.addresses import parse_address
from calabash.model.network import NetworkKind, Port, Vpc
from calabash.model.network_services import Backend, CheckKind, HealthCheck, LoadBalancer
from calabash.model.network_status import ConditionKind
from calabash.net.ovn.northbound.rows import PLATFORM, Ref, Rows
from calabash.net.store.networks import Networks

PORT, VPC = NetworkKind.PORT, NetworkKind.VPC
REALIZED, READY, VALID = ConditionKind.REALIZED, ConditionKind.READY, ConditionKind.VALID


@pytest.fixture
def plane(lab_prefix: str) -> Iterator[Lab]:
    """Start databases, northd, one host and one gateway host without a datapath, in about half a second."""
    needs.need(packets=False)
    prefix = f"d{lab_prefix[1:]}"
    with Lab(prefix=prefix, directory=register() / prefix, hosts=("h1",), gateways=("g1",), dummy=True) as made:
        yield made


@pytest.fixture
def controller(plane: Lab) -> Iterator[Controller]:
    with Controller(plane.northbound, plane.southbound) as made:
        yield made


def test_networks_are_realized_and_every_object_reports_it(controller: Controller, plane: Lab) -> None:
    networks = vpc_with_ports(vpc_with_ports(Networks(), "red"), "blue")
    controller.realize(networks, generation=3)
    assert controller.differences(networks) == []
    assert controller.reconciler.northbound.revision("red") == networks.revision
    until(lambda: len(controller.reports) == len(list(networks.items())))
    assert controller.condition(VPC, "red", VALID) == (True, "accepted", "")
    assert controller.condition(PORT, "blue/a/p1", REALIZED) == (True, "realized", "")
    assert {report.status.observed_generation for report in controller.reports.values()} == {3}


def test_port_is_ready_when_a_host_has_it_and_says_which(controller: Controller, plane: Lab) -> None:
    networks = vpc_with_ports(Networks(), "red")
    controller.realize(networks)
    host = plane.host("h1")
    host.vsctl("add-port", "br-int", "v0", "--", "set", "interface", "v0", "external_ids:iface-id=red/a/p0")
    until(lambda: controller.condition(PORT, "red/a/p0", READY)[0] is True)
    assert controller.reports[PORT, "red/a/p0"].status.host == "h1"
    assert controller.condition(PORT, "red/a/p0", READY)[1] == "bound"
    host.vsctl("del-port", "br-int", "v0")
    until(lambda: controller.condition(PORT, "red/a/p0", READY)[:2] == (False, "unbound"))


def test_balancer_tells_how_many_of_its_backends_hosts_see_well(controller: Controller, plane: Lab) -> None:
    balancer = LoadBalancer(
        name="red/web",
        vip=parse_address("10.0.1.100"),
        vip_number=80,
        backends=(Backend(port="red/a/p0", number=8080), Backend(port="red/a/p1", number=8080)),
        check=HealthCheck(kind=CheckKind.TCP),
    )
    controller.realize(vpc_with_ports(Networks(), "red").put(balancer)[0])
    key = (NetworkKind.LOAD_BALANCER, "red/web", READY)
    until(lambda: controller.condition(*key) == (None, "backends_unknown", "2 of 2 backends have no health state yet"))
    plane.central.stop("northd")  # northd marks backends as offline if no host has bound their ports
    for healthy, told in (
        ((True, False), (True, "backends_ill", "1 of 2 backends are healthy; unhealthy: a.p1-8080")),
        ((False, False), (False, "no_backend", "0 of 2 backends are healthy; unhealthy: a.p0-8080, a.p1-8080")),
        ((True, True), (True, "backends_well", "2 of 2 backends are healthy")),
    ):
        until(functools.partial(is_told, controller, plane, healthy, told), what=str(told))
    plane.central.start("northd")


def is_told(controller: Controller, plane: Lab, healthy: tuple[bool, bool], told: tuple[bool, str, str]) -> bool:
    """Write health states as hosts do, which check nothing without packets; return True if the condition has followed."""
    for number, fine in enumerate(healthy):
        row = plane.central.sbctl(
            "--bare", "--columns=_uuid", "find", "Service_Monitor", f"logical_port=red/a/p{number}"
        )
        plane.central.sbctl("set", "Service_Monitor", row.strip(), f"status={'online' if fine else 'offline'}")
    return controller.condition(NetworkKind.LOAD_BALANCER, "red/web", READY) == told


def edit(controller: Controller, plane: Lab, *words: str) -> None:
    """Edit the northbound database as an administrator does; return when the controller has seen the change."""
    northbound = controller.reconciler.northbound
    mark = str(time.monotonic_ns())
    plane.central.nbctl(*words, "--", "set", "NB_Global", ".", f"options:mark={mark}")
    until(lambda: mark in str(northbound.actual(PLATFORM)[GLOBAL]))


def test_rows_that_are_edited_or_deleted_by_hand_are_repaired_at_once(controller: Controller, plane: Lab) -> None:
    networks = vpc_with_ports(Networks(), "red")
    controller.realize(networks)
    for words in (
        ("lsp-set-addresses", "red/a/p0", "unknown"),
        ("lsp-del", "red/a/p1"),
        ("ls-del", "cb-red/a"),
        ("lr-del", "cb-red"),
        ("set", "Logical_Router", "cb-red", "options:dynamic_neigh_routers=false"),
        ("pg-del", "cb.red.drop"),
        ("lsp-add", "cb-red/a", "red/a/theirs"),
        ("clear", "Logical_Switch", "cb-red/a", "external_ids"),
        ("--all", "destroy", "DHCP_Options", "--", "--all", "destroy", "DNS"),
    ):
        edit(controller, plane, *words)
        until(lambda: controller.differences(networks) == [], what=f"repaired after {words}")


def test_rows_of_others_stay_whatever_is_done(controller: Controller, plane: Lab) -> None:
    plane.central.nbctl("ls-add", "theirs", "--", "lsp-add", "theirs", "their-port", "--", "lr-add", "their-router")
    networks = vpc_with_ports(Networks(), "red")
    controller.realize(networks)
    networks = networks.remove(VPC, "red", cascade=True)
    controller.realize(networks)
    assert controller.differences(networks) == []
    assert "their-port" in plane.central.nbctl("lsp-list", "theirs")
    assert "their-router" in plane.central.nbctl("lr-list")
    assert "red" not in plane.central.nbctl("show")


def test_what_was_left_of_a_vpc_that_is_no_more_goes_when_a_controller_starts(plane: Lab) -> None:
    networks = vpc_with_ports(vpc_with_ports(Networks(), "red"), "blue")
    with Controller(plane.northbound, plane.southbound) as first:
        first.realize(networks)
    after = networks.remove(VPC, "red", cascade=True)
    with Controller(plane.northbound, plane.southbound) as second:
        second.realize(after)
        assert second.differences(after) == []
        assert "red" not in second.reconciler.northbound.owners()


def test_wiped_database_is_filled_again(controller: Controller, plane: Lab) -> None:
    networks = vpc_with_ports(vpc_with_ports(Networks(), "red"), "blue")
    controller.realize(networks)
    plane.central.kill("nb")
    (plane.central.directory / "nb.db").unlink()
    plane.central.up()
    until(lambda: controller.reconciler.northbound.session.ready and controller.differences(networks) == [])
    controller.settled(networks)


def test_database_of_an_old_backup_is_brought_up_to_date(controller: Controller, plane: Lab) -> None:
    old = vpc_with_ports(vpc_with_ports(Networks(), "red"), "gone")
    controller.realize(old)
    file = plane.central.directory / "nb.db"
    backup = file.read_bytes()
    networks = vpc_with_ports(old.remove(VPC, "gone", cascade=True), "blue", ports=3)
    networks = networks.remove(PORT, "red/a/p0")
    controller.realize(networks)
    plane.central.kill("nb")
    file.write_bytes(backup)
    plane.central.start("nb")
    until(lambda: controller.reconciler.northbound.session.ready and controller.differences(networks) == [])
    controller.settled(networks)
    assert controller.reconciler.northbound.owners() - {"-"} == {"red", "blue"}


def test_of_two_controllers_one_writes_and_the_other_takes_over(plane: Lab) -> None:
    networks = vpc_with_ports(Networks(), "red")
    first = Controller(plane.northbound, plane.southbound)
    try:
        first.realize(networks)
        with Controller(plane.northbound, plane.southbound) as second:
            second.take(networks)
            edit(first, plane, "lsp-del", "red/a/p0")
            until(lambda: first.differences(networks) == [])
            assert second.reports == {}
            later = vpc_with_ports(networks, "blue")
            second.take(later)
            first.close()
            second.settled(later)
            assert second.differences(later) == []
            assert second.condition(VPC, "blue", REALIZED)[0] is True
    finally:
        first.close()


def test_one_broken_vpc_does_not_stop_the_others_and_says_why(controller: Controller, plane: Lab) -> None:
    plane.central.nbctl("ls-add", "theirs", "--", "lsp-add", "theirs", "red/a/p0")  # a name that we would need
    networks = vpc_with_ports(Networks(), "red")
    for name in ("blue", "green", "white"):
        networks = vpc_with_ports(networks, name)
    controller.take(networks)
    until(lambda: controller.condition(VPC, "white", REALIZED)[0] is True)
    holds, reason, message = controller.condition(VPC, "red", VALID)
    assert (holds, reason) == (False, "conflict")
    assert "red/a/p0" in message
    assert controller.reconciler.northbound.owners() - {"-"} == {"blue", "green", "white"}
    plane.central.nbctl("ls-del", "theirs")
    controller.settled(networks)  # it was tried again
    assert controller.condition(VPC, "red", VALID)[0] is True


def test_vpc_that_cannot_be_drawn_up_does_not_stop_the_others(
    controller: Controller, plane: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = owner_rows

    def broken(networks: Networks, owner: str, around: Surroundings) -> Rows:
        if owner == "red":
            raise ZeroDivisionError("of a mistake of ours")
        return whole(networks, owner, around)

    monkeypatch.setattr(reconciling, "owner_rows", broken)
    networks = vpc_with_ports(vpc_with_ports(Networks(), "red"), "blue")
    controller.take(networks)
    until(lambda: controller.condition(VPC, "blue", REALIZED)[0] is True)
    until(lambda: controller.condition(VPC, "red", VALID)[:2] == (False, "unsupported"))
    monkeypatch.setattr(reconciling, "owner_rows", whole)
    controller.settled(networks)


def test_dead_host_holds_nobody_up_and_its_ports_are_told(controller: Controller, plane: Lab) -> None:
    networks = vpc_with_ports(Networks(), "red")
    controller.realize(networks)
    host = plane.host("h1")
    host.vsctl("add-port", "br-int", "v0", "--", "set", "interface", "v0", "external_ids:iface-id=red/a/p0")
    until(lambda: controller.condition(PORT, "red/a/p0", READY)[0] is True)
    host.kill("ovn-controller")
    until(lambda: controller.condition(PORT, "red/a/p0", READY)[:2] == (False, "host_silent"))
    networks = networks.put(Port(name="red/a/p9"))[0]
    controller.realize(networks, generation=2)
    assert controller.condition(PORT, "red/a/p9", REALIZED) == (True, "realized", "without h1, which do not respond")
    host.start("ovn-controller")
    until(lambda: controller.condition(PORT, "red/a/p0", READY)[0] is True)


def test_changes_that_come_one_by_one_are_carried_out(controller: Controller, plane: Lab) -> None:
    networks = vpc_with_ports(Networks(), "red")
    controller.realize(networks)
    for number in range(5):
        networks = networks.put(Port(name=f"red/a/q{number}"))[0]
        controller.realize(networks)
    assert controller.differences(networks) == []
    vpc = networks.find(Vpc, "red")
    assert vpc is not None
    networks = networks.put(replace(vpc, mtu_bytes=1300))[0]
    controller.realize(networks)
    assert controller.differences(networks) == []
    assert Ref("Logical_Switch_Port", "red/a/q4") in controller.reconciler.northbound.actual("red")
