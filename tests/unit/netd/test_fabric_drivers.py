"""Drivers of fabrics against managers that err: rounds end as wanted as soon as the manager is well, and say so until then."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.fabric import FabricEndpoint, FabricPlane, FabricState, FabricUse
from calabash.net.fabric_partitions import PKEY_DEFAULT
from calabash.netd.fabric.driver import FabricView, NullFabric
from calabash.netd.fabric.infiniband import InfinibandFabric
from calabash.netd.fabric.round import FabricRound, fabric_round
from calabash.netd.fabric.settings import read_fabric
from calabash.netd.fabric.simulated import SimulatedFabric
from calabash.netd.fabric.simulated_ufm import SimulatedUfm
from calabash.seams.ufm import UfmClient, UfmServer

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


def test_a_card_joins_its_tenants_partition_and_leaves_it_when_it_is_free(ufm: SimulatedUfm) -> None:
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


def test_a_card_changes_hands_in_one_round_and_leaves_first(ufm: SimulatedUfm) -> None:
    driver = infiniband(ufm)
    fabric_round(driver, ENDPOINTS, [RED])
    ufm.asked.clear()
    assert state(fabric_round(driver, ENDPOINTS, [BLUE])) is FabricState.MEMBER
    left = next(n for n, line in enumerate(ufm.asked) if line.startswith("DELETE") and "/guids/" in line)
    joined = next(n for n, line in enumerate(ufm.asked) if line == "POST /ufmRest/resources/pkeys/")
    looked = [n for n, line in enumerate(ufm.asked) if line.startswith("GET")]
    assert left < joined
    assert any(left < n < joined for n in looked), "it joined without having been observed to leave"


def test_partitions_of_others_stay_as_they_are(ufm: SimulatedUfm) -> None:
    ufm.pkeys.names |= {0x50: "storage", 0x100: "somebody", 0x7000: "cb-red"}
    ufm.pkeys.members |= {0x50: {PORTS[0]: "full"}, 0x100: {PORTS[1]: "full"}, 0x7000: {PORTS[2]: "full"}}
    found = fabric_round(infiniband(ufm), ENDPOINTS, [RED])
    assert state(found) is FabricState.MEMBER
    assert ufm.pkeys.names[0x101] == "cb-red"
    fabric_round(infiniband(ufm), ENDPOINTS, [])
    assert set(ufm.pkeys.names) == {0x50, 0x100, 0x7000, PKEY_DEFAULT}


def test_a_full_member_of_the_managers_partition_is_exposed(ufm: SimulatedUfm) -> None:
    ufm.pkeys.members[PKEY_DEFAULT] = {PORTS[0]: "full", PORTS[1]: "limited"}
    found = fabric_round(infiniband(ufm), ENDPOINTS, [RED])
    assert state(found) is FabricState.EXPOSED
    assert "full member" in next(c.message for c in found.conditions if c.device == CARD)


@pytest.mark.parametrize("status", [401, 404, 429, 500, 503])
def test_a_manager_that_refuses_is_not_known_and_all_is_well_when_it_answers_again(
    ufm: SimulatedUfm, status: int
) -> None:
    driver = infiniband(ufm)
    fabric_round(driver, ENDPOINTS, [RED])
    ufm.pkeys.faults.status = status
    refused = fabric_round(driver, ENDPOINTS, [])
    assert state(refused) is FabricState.UNKNOWN
    assert standing(refused) is None
    assert refused.problem
    ufm.pkeys.faults.status = 0
    assert state(fabric_round(driver, ENDPOINTS, [])) is FabricState.CLEAR


def test_a_manager_that_is_slow_ends_the_round_in_time(ufm: SimulatedUfm) -> None:
    ufm.pkeys.faults.hang = threading.Event()
    found = fabric_round(infiniband(ufm, timeout_s=0.2), ENDPOINTS, [RED])
    assert state(found) is FabricState.UNKNOWN
    assert "did not answer within" in found.problem


def test_a_manager_that_is_down_is_not_known() -> None:
    with SimulatedUfm() as gone:
        driver = infiniband(gone)
    assert state(fabric_round(driver, ENDPOINTS, [RED])) is FabricState.UNKNOWN


def test_a_page_for_people_is_no_answer(ufm: SimulatedUfm) -> None:
    ufm.pkeys.faults.garbage = True
    found = fabric_round(infiniband(ufm), ENDPOINTS, [RED])
    assert state(found) is FabricState.UNKNOWN
    assert "not understood" in found.problem


def test_orders_that_are_answered_and_not_carried_out_are_seen(ufm: SimulatedUfm) -> None:
    driver = infiniband(ufm)
    fabric_round(driver, ENDPOINTS, [RED])
    ufm.pkeys.faults.lose = True
    found = fabric_round(driver, ENDPOINTS, [])
    assert (state(found), standing(found)) == (FabricState.LEAVING, ("red",))
    assert "accepted an order without effect" in found.problem
    ufm.pkeys.faults.lose = False
    assert state(fabric_round(driver, ENDPOINTS, [])) is FabricState.CLEAR


def test_a_release_that_is_half_done_leaves_the_card_standing(ufm: SimulatedUfm) -> None:
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


def test_an_order_whose_answer_is_lost_is_found_done(ufm: SimulatedUfm) -> None:
    driver = infiniband(ufm)
    ufm.pkeys.faults.forget_answer = True
    for _ in range(3):
        found = fabric_round(driver, ENDPOINTS, [RED])
    assert state(found) is FabricState.MEMBER
    assert list(ufm.pkeys.names.values()).count("cb-red") == 1


def test_a_manager_that_keeps_no_names_gets_no_members(ufm: SimulatedUfm) -> None:
    ufm.pkeys.faults.nameless = True
    found = fabric_round(infiniband(ufm), ENDPOINTS, [RED])
    assert state(found) is FabricState.JOINING
    assert "does not have that name" in found.problem
    assert set(ufm.pkeys.names) == {PKEY_DEFAULT}


def test_a_tenant_that_finds_no_number_is_told_and_others_are_served(ufm: SimulatedUfm) -> None:
    driver = infiniband(ufm, last=0x100)
    uses = [BLUE, FabricUse(device=OTHER, tenant="red")]
    found = fabric_round(driver, ENDPOINTS, uses)
    assert {state(found), state(found, OTHER)} == {FabricState.MEMBER, FabricState.JOINING}
    assert "all 1 partitions" in found.problem


def test_the_password_goes_with_each_question_and_a_wrong_one_is_said(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("pw\n")
    secret.chmod(0o600)
    server = UfmServer(url="", user="calabash", password_file=str(secret))
    with SimulatedUfm(authorization="Basic Y2FsYWJhc2g6cHc=") as ufm:
        known = UfmClient(UfmServer(url=ufm.url, user=server.user, password_file=server.password_file))
        assert known.pkeys().keys() == {PKEY_DEFAULT}
        stranger = UfmClient(UfmServer(url=ufm.url, user="other"))
        with pytest.raises(CalabashError) as caught:
            stranger.pkeys()
    assert caught.value.reason is Reason.NOT_AUTHENTICATED


@pytest.mark.parametrize("plane", [FabricPlane.ROCE, FabricPlane.NVLINK])
def test_a_simulated_fabric_outlives_its_controller(plane: FabricPlane, tmp_path: Path) -> None:
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


def test_a_simulated_fabric_refuses_an_address_that_is_elsewhere(tmp_path: Path) -> None:
    driver = SimulatedFabric(FabricPlane.ROCE, tmp_path / "roce.json", first=1, last=9)
    one, two = driver.allocate("red", driver.observe()), driver.allocate("blue", driver.observe())
    driver.attach(one, ["h1/a/vf0"])
    with pytest.raises(CalabashError, match="is in partition 1"):
        driver.attach(two, ["h1/a/vf0"])
    with pytest.raises(CalabashError, match="not empty"):
        driver.drop(one)


def test_an_nvlink_partition_stays_in_its_domain(tmp_path: Path) -> None:
    domains = {"a": "rack1", "b": "rack2"}
    driver = SimulatedFabric(FabricPlane.NVLINK, tmp_path / "nvlink.json", first=1, last=9, domains=domains)
    with pytest.raises(CalabashError, match="2 NVLink domains"):
        driver.attach(driver.allocate("red", driver.observe()), ["a", "b"])


def test_a_plane_that_nothing_divides_is_called_so() -> None:
    found = fabric_round(NullFabric(FabricPlane.INFINIBAND), ENDPOINTS, [RED])
    assert (state(found), standing(found), found.orders) == (FabricState.UNDIVIDED, (), 0)


def test_the_file_names_drivers_and_where_cards_are(tmp_path: Path) -> None:
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
def test_a_bad_file_is_refused_with_the_field(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "fabric.toml"
    file.write_text(content)
    with pytest.raises(CalabashError, match=said):
        read_fabric(file)


def test_a_manager_without_a_url_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "fabric.toml"
    file.write_text('[infiniband]\ndriver = "ufm"\n')
    with pytest.raises(CalabashError, match="needs a url"):
        read_fabric(file).drivers(tmp_path)
