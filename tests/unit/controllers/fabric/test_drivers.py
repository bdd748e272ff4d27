"""Fabric drivers with faulty managers: problems are reported, and rounds reach the desired state after the manager recovers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from calabash.adapters.ufm import UfmClient, UfmServer
from calabash.controllers.fabric.driver import FabricView, NullFabric
from calabash.controllers.fabric.infiniband import InfinibandFabric
from calabash.controllers.fabric.reconcile import FabricRound, fabric_round
from calabash.controllers.fabric.settings import read_fabric
from calabash.controllers.fabric.simulated import SimulatedFabric
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.fabric import FabricEndpoint, FabricPlane, FabricState, FabricUse
from calabash.net.fabric_partitions import PKEY_DEFAULT
from calabash_testing.fabric.ufm import SimulatedUfm

CARD, OTHER = DeviceUuid("GPU-1"), DeviceUuid("GPU-2")
PORTS = ("506b4b0300a1b201", "506b4b0300a1b202", "506b4b0300a1b203", "506b4b0300a1b204")
ENDPOINTS = tuple(
    FabricEndpoint(plane=FabricPlane.INFINIBAND, device=CARD if n < 2 else OTHER, address=port)
    for n, port in enumerate(PORTS)
)
RED, BLUE = FabricUse(device=CARD, tenant="red"), FabricUse(device=CARD, tenant="blue")


@pytest.fixture
def ufm() -> Iterator[SimulatedUfm]:
    with SimulatedUfm() as found:
        yield found


def infiniband(ufm: SimulatedUfm, *, timeout_s: float = 30.0, last: int = 0x1FF) -> InfinibandFabric:
    return InfinibandFabric(UfmClient(UfmServer(url=ufm.url, timeout_s=timeout_s)), first=0x100, last=last)


def state(found: FabricRound, card: DeviceUuid = CARD) -> FabricState:
    return next(c.state for c in found.conditions if c.device == card)


def standing(found: FabricRound, card: DeviceUuid = CARD) -> tuple[str, ...] | None:
    return next(c.standing for c in found.conditions if c.device == card)


def test_device_joins_the_partition_of_its_tenant_and_leaves_it_when_free(ufm: SimulatedUfm) -> None:
    driver = infiniband(ufm)
    joined = fabric_round(driver, ENDPOINTS, [RED])
    assert state(joined) is FabricState.MEMBER
    assert ufm.pkeys.names[0x100] == "cb-red"
    assert ufm.pkeys.members[0x100] == {PORTS[0]: "full", PORTS[1]: "full"}
    assert next(c.number for c in joined.conditions if c.device == CARD) == 0x100
    again = fabric_round(driver, ENDPOINTS, [RED])
    assert (again.orders, again.problem) == (0, "")
    free = fabric_round(driver, ENDPOINTS, [])
    assert state(free) is FabricState.CLEAR
    assert set(ufm.pkeys.names) == {PKEY_DEFAULT}


def test_device_changes_partitions_in_one_round_and_leaves_first(ufm: SimulatedUfm) -> None:
    driver = infiniband(ufm)
    fabric_round(driver, ENDPOINTS, [RED])
    ufm.asked.clear()
    assert state(fabric_round(driver, ENDPOINTS, [BLUE])) is FabricState.MEMBER
    left = next(n for n, line in enumerate(ufm.asked) if line.startswith("DELETE") and "/guids/" in line)
    joined = next(n for n, line in enumerate(ufm.asked) if line == "POST /ufmRest/resources/pkeys/")
    looked = [n for n, line in enumerate(ufm.asked) if line.startswith("GET")]
    assert left < joined
    assert any(left < n < joined for n in looked), "it joined without having been observed to leave"


def test_foreign_partitions_are_unchanged(ufm: SimulatedUfm) -> None:
    ufm.pkeys.names |= {0x50: "storage", 0x100: "somebody", 0x7000: "cb-red"}
    ufm.pkeys.members |= {0x50: {PORTS[0]: "full"}, 0x100: {PORTS[1]: "full"}, 0x7000: {PORTS[2]: "full"}}
    found = fabric_round(infiniband(ufm), ENDPOINTS, [RED])
    assert state(found) is FabricState.MEMBER
    assert ufm.pkeys.names[0x101] == "cb-red"
    fabric_round(infiniband(ufm), ENDPOINTS, [])
    assert set(ufm.pkeys.names) == {0x50, 0x100, 0x7000, PKEY_DEFAULT}


def test_full_member_of_the_management_partition_is_exposed(ufm: SimulatedUfm) -> None:
    ufm.pkeys.members[PKEY_DEFAULT] = {PORTS[0]: "full", PORTS[1]: "limited"}
    found = fabric_round(infiniband(ufm), ENDPOINTS, [RED])
    assert state(found) is FabricState.EXPOSED
    assert "full member" in next(c.message for c in found.conditions if c.device == CARD)


@pytest.mark.parametrize("status", [401, 404, 429, 500, 503])
def test_state_is_unknown_while_the_manager_refuses_and_recovers_afterwards(ufm: SimulatedUfm, status: int) -> None:
    driver = infiniband(ufm)
    fabric_round(driver, ENDPOINTS, [RED])
    ufm.pkeys.faults.status = status
    refused = fabric_round(driver, ENDPOINTS, [])
    assert state(refused) is FabricState.UNKNOWN
    assert standing(refused) is None
    assert refused.problem
    ufm.pkeys.faults.status = 0
    assert state(fabric_round(driver, ENDPOINTS, [])) is FabricState.CLEAR


def test_slow_manager_does_not_delay_the_round(ufm: SimulatedUfm) -> None:
    ufm.pkeys.faults.hang = threading.Event()
    found = fabric_round(infiniband(ufm, timeout_s=0.2), ENDPOINTS, [RED])
    assert state(found) is FabricState.UNKNOWN
    assert "did not answer within" in found.problem


def test_state_is_unknown_while_the_manager_is_down() -> None:
    with SimulatedUfm() as gone:
        driver = infiniband(gone)
    assert state(fabric_round(driver, ENDPOINTS, [RED])) is FabricState.UNKNOWN


def test_html_page_is_not_a_valid_reply(ufm: SimulatedUfm) -> None:
    ufm.pkeys.faults.garbage = True
    found = fabric_round(infiniband(ufm), ENDPOINTS, [RED])
    assert state(found) is FabricState.UNKNOWN
    assert "not understood" in found.problem


def test_confirmed_orders_without_effect_are_detected(ufm: SimulatedUfm) -> None:
    driver = infiniband(ufm)
    fabric_round(driver, ENDPOINTS, [RED])
    ufm.pkeys.faults.lose = True
    found = fabric_round(driver, ENDPOINTS, [])
    assert (state(found), standing(found)) == (FabricState.LEAVING, ("red",))
    assert "accepted an order without effect" in found.problem
    ufm.pkeys.faults.lose = False
    assert state(fabric_round(driver, ENDPOINTS, [])) is FabricState.CLEAR


def test_partial_release_keeps_the_device_in_the_leaving_state(ufm: SimulatedUfm) -> None:
    driver = infiniband(ufm)
    whole = tuple(FabricEndpoint(plane=FabricPlane.INFINIBAND, device=CARD, address=port) for port in PORTS)
    fabric_round(driver, whole, [RED])
    ufm.pkeys.faults.half = True
    first = driver.observe()
    driver.release(first.partitions[0].number, PORTS)
    assert standing_of(driver.observe()) == {"red": {PORTS[1], PORTS[3]}}
    ufm.pkeys.faults.half = False
    assert state(fabric_round(driver, whole, [BLUE])) is FabricState.MEMBER
    assert standing_of(driver.observe()) == {"blue": set(PORTS)}


def standing_of(view: FabricView) -> dict[str, set[str]]:
    return {p.tenant: set(p.members) for p in view.partitions}


def test_order_with_a_lost_reply_is_found_carried_out(ufm: SimulatedUfm) -> None:
    driver = infiniband(ufm)
    ufm.pkeys.faults.forget_answer = True
    for _ in range(3):
        found = fabric_round(driver, ENDPOINTS, [RED])
    assert state(found) is FabricState.MEMBER
    assert list(ufm.pkeys.names.values()).count("cb-red") == 1


def test_manager_without_partition_names_gets_no_members(ufm: SimulatedUfm) -> None:
    ufm.pkeys.faults.nameless = True
    found = fabric_round(infiniband(ufm), ENDPOINTS, [RED])
    assert state(found) is FabricState.JOINING
    assert "does not have that name" in found.problem
    assert set(ufm.pkeys.names) == {PKEY_DEFAULT}


def test_tenant_without_a_free_number_is_reported_and_others_are_served(ufm: SimulatedUfm) -> None:
    driver = infiniband(ufm, last=0x100)
    uses = [BLUE, FabricUse(device=OTHER, tenant="red")]
    found = fabric_round(driver, ENDPOINTS, uses)
    assert {state(found), state(found, OTHER)} == {FabricState.MEMBER, FabricState.JOINING}
    assert "all 1 partitions" in found.problem


def test_password_is_sent_with_each_request_and_a_wrong_one_is_reported(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("pw\n")
    secret.chmod(0o600)
    server = UfmServer(url="", user="calabash", password_file=str(secret))
    with SimulatedUfm(authorization="Basic Y2FsYWJhc2g6cHc=") as ufm:
        known = UfmClient(UfmServer(url=ufm.url, user=server.user, password_file=server.password_file))
        assert known.pkeys().keys() == {PKEY_DEFAULT}
        foreign_server = UfmClient(UfmServer(url=ufm.url, user="other"))
        with pytest.raises(CalabashError) as caught:
            foreign_server.pkeys()
    assert caught.value.reason is Reason.NOT_AUTHENTICATED


@pytest.mark.parametrize("plane", [FabricPlane.ROCE, FabricPlane.NVLINK])
def test_simulated_fabric_persists_across_controllers(plane: FabricPlane, tmp_path: Path) -> None:
    address = {FabricPlane.ROCE: "h1/ens1f0/vf3", FabricPlane.NVLINK: "tray3-GPU2"}[plane]
    endpoints = [FabricEndpoint(plane=plane, device=CARD, address=address)]

    def driver() -> SimulatedFabric:
        return SimulatedFabric(plane, tmp_path / "fabric.json", first=1, last=9)

    assert state(fabric_round(driver(), endpoints, [RED])) is FabricState.MEMBER
    assert fabric_round(driver(), endpoints, [RED]).orders == 0
    assert state(fabric_round(driver(), endpoints, [BLUE])) is FabricState.MEMBER
    assert standing_of(driver().observe()) == {"blue": {address}}
    assert state(fabric_round(driver(), endpoints, [])) is FabricState.CLEAR
    assert driver().observe() == FabricView()


def test_simulated_fabric_refuses_an_address_of_another_partition(tmp_path: Path) -> None:
    driver = SimulatedFabric(FabricPlane.ROCE, tmp_path / "roce.json", first=1, last=9)
    one, two = driver.allocate("red", driver.observe()), driver.allocate("blue", driver.observe())
    driver.attach(one, ["h1/a/vf0"])
    with pytest.raises(CalabashError, match="is in partition 1"):
        driver.attach(two, ["h1/a/vf0"])
    with pytest.raises(CalabashError, match="not empty"):
        driver.drop(one)


def test_nvlink_partition_cannot_span_domains(tmp_path: Path) -> None:
    domains = {"a": "rack1", "b": "rack2"}
    driver = SimulatedFabric(FabricPlane.NVLINK, tmp_path / "nvlink.json", first=1, last=9, domains=domains)
    with pytest.raises(CalabashError, match="2 NVLink domains"):
        driver.attach(driver.allocate("red", driver.observe()), ["a", "b"])


def test_plane_without_partitions_is_reported_as_undivided() -> None:
    found = fabric_round(NullFabric(FabricPlane.INFINIBAND), ENDPOINTS, [RED])
    assert (state(found), standing(found), found.orders) == (FabricState.UNDIVIDED, (), 0)


def test_settings_contain_drivers_and_addresses_of_devices(tmp_path: Path) -> None:
    file = tmp_path / "fabric.toml"
    file.write_text(
        '[infiniband]\ndriver = "ufm"\nurl = "http://127.0.0.1:1"\nfirst_number = 0x10\n[roce]\ndriver = "simulated"\n'
        '[nvlink]\n[[card]]\ndevice = "GPU-1"\ninfiniband = ["0x506b4b0300a1b201"]\nroce = ["h1/ens1f0/vf3"]\n'
    )
    settings = read_fabric(file)
    assert [type(driver).__name__ for driver in settings.drivers(tmp_path)] == [
        "InfinibandFabric",
        "SimulatedFabric",
        "NullFabric",
    ]
    assert [one.address for one in settings.endpoints()] == ["506b4b0300a1b201", "h1/ens1f0/vf3"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[infiniband]\nfirst_number = 0x7fff\n", "first_number"),
        ('[[card]]\ndevice = "GPU-1"\ninfiniband = ["7"]\n', "is not an address on infiniband"),
        ("[ethernet]\n", "ethernet"),
    ],
)
def test_invalid_settings_are_refused_with_the_field(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "fabric.toml"
    file.write_text(content)
    with pytest.raises(CalabashError, match=said):
        read_fabric(file)


def test_manager_without_a_url_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "fabric.toml"
    file.write_text('[infiniband]\ndriver = "ufm"\n')
    with pytest.raises(CalabashError, match="needs a url"):
        read_fabric(file).drivers(tmp_path)
