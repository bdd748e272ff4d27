"""Tests that packets of a tenant reach no other tenant with equal addresses, as traced by OVN without real packets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.net.control_plane import HOSTS, ControlPlane
from tests.net.leaks import attempts, leaks, tenants
from tests.unit.net.sample_tenants import sample_tenants

from calabash.model.network import Port, Subnet, Vpc
from calabash.net.addresses.derived import MacUse, platform_mac
from calabash.net.ovn.northbound.changes import diff
from calabash.net.ovn.northbound.rows import PLATFORM
from calabash.net.ovn.northbound.tables import TABLES
from calabash.net.ovn.translation.platform import platform_rows
from calabash.net.ovn.translation.vpc import vpc_rows
from calabash.net.store.networks import Networks

TENANTS, ATTEMPTS = 100, 10_000


@pytest.fixture(scope="module")
def networks() -> Networks:
    return tenants(TENANTS)


@pytest.fixture(scope="module")
def plane(networks: Networks, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("plane")) as made:
        made.put(networks)
        made.trace()
        yield made


def test_no_packet_comes_to_another_tenant(networks: Networks, plane: ControlPlane) -> None:
    found = []
    for attempt in attempts(networks, ATTEMPTS, seed=11):
        outputs = plane.outputs(attempt.switch, attempt.flow)
        found += [(attempt, port) for port in leaks(outputs, attempt)]
    assert found == []


def test_ports_of_one_tenant_reach_each_other_in_a_subnet_and_across(networks: Networks, plane: ControlPlane) -> None:
    for vpc in ("t1", "t50", "t100"):
        ports, router = networks.of_vpc(vpc).all(Port), _router(networks, vpc)
        one, near, far = (ports[f"{vpc}/{name}"] for name in ("a/p11", "a/p12", "b/p11"))
        for target, mac in ((near, near.mac), (far, router)):
            flow = (
                f'inport == "{one.name}" && eth.src == {one.mac} && eth.dst == {mac} && ip.ttl == 64 && '
                f"ip4.src == {one.addresses[0]} && ip4.dst == {target.addresses[0]} && tcp && tcp.dst == 80"
            )
            assert plane.outputs(f"cb-{vpc}/a", flow) == [target.name]


def test_what_leaves_has_the_gateways_address_and_goes_to_the_provider_alone(
    networks: Networks, plane: ControlPlane
) -> None:
    one = networks.of_vpc("t3").all(Port)["t3/a/p11"]
    flow = (
        f'inport == "{one.name}" && eth.src == {one.mac} && eth.dst == {_router(networks, "t3")} && ip.ttl == 64 && '
        f"ip4.src == {one.addresses[0]} && ip4.dst == 203.0.113.9 && tcp && tcp.dst == 80"
    )
    told = plane.trace_text("cb-t3/a", flow, "--minimal")
    assert "ct_snat(ip4.src=198.51.0." in told
    assert set(plane.outputs("cb-t3/a", flow)) == {"cb:uplink:up0:localnet"}


def test_leak_is_detected_and_deleted_rows_are_restored(networks: Networks, plane: ControlPlane) -> None:
    inside = [attempt for attempt in attempts(networks, 2000, seed=7) if attempt.switch == "cb:uplink:up0"]

    def leaking() -> bool:
        plane.central.nbctl("--wait=sb", "sync")
        plane.trace()
        return any(leaks(plane.outputs(attempt.switch, attempt.flow), attempt) for attempt in inside)

    plane.central.nbctl("clear", "Logical_Switch", "cb:uplink:up0", "acls")
    assert leaking()  # by a forged sender of the tenant's own group
    plane.put(networks)
    assert not leaking()


def _router(networks: Networks, vpc: str) -> str:
    """Return the MAC of the VPC's router in subnet ``a``, which was created first."""
    found, subnet = networks.find(Vpc, vpc), networks.find(Subnet, f"{vpc}/a")
    assert found is not None
    assert subnet is not None
    return platform_mac(MacUse.SUBNET, found.number, subnet.number)


def test_northd_takes_the_rows_of_every_kind_of_object_without_a_complaint(tmp_path: Path) -> None:
    networks = sample_tenants()
    with ControlPlane(tmp_path / "plane") as plane:
        plane.put(networks)
        plane.central.nbctl("--wait=sb", "sync")
        for vpc in ("red", "blue", "green"):
            assert diff(vpc_rows(networks, vpc, hosts=HOSTS), plane.northbound.actual(vpc)) == ()
        assert diff(platform_rows(networks), plane.northbound.actual(PLATFORM)) == ()
        said = (plane.central.directory / "northd.log").read_text()
        assert [line for line in said.splitlines() if "|WARN|" in line or "|ERR|" in line] == []
        plane.put(Networks())
        assert plane.northbound.owners() <= {PLATFORM}
        for table in set(TABLES) - {"NB_Global"}:
            assert plane.central.nbctl("--bare", "--columns=_uuid", "list", table).split() == []
