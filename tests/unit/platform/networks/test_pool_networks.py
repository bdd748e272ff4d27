"""Networks of a pool: durable changes, concurrent writers, tenants and rights, reports, and waiting for changes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
from tests.unit.platform.networks.people import ANN, EVE, GUEST, LONER, PEOPLE, ROOT, pool_networks, put, red, refused

from calabash.adapters.store import Store, open_store
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Message, NetworkName
from calabash.model.network import NetworkKind
from calabash.model.tenancy import Tenant
from calabash.net.objects.specs import decode
from calabash.platform.handlers.networks import _wait_for_change
from calabash.platform.networks import rights
from calabash.platform.networks.store import NetworkStore
from calabash.platform.networks.views import shown, snapshot


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path}/pool.db")
    yield opened
    opened.close()


@pytest.fixture
def networks(store: Store) -> NetworkStore:
    return pool_networks(store)


def test_vpc_belongs_to_the_tenant_of_its_creator_and_has_a_default_group(networks: NetworkStore) -> None:
    red(networks)
    assert networks.state().kept["vpc", "red"].tenant == "vision"
    assert networks.state().kept["sg", "red/default"].tenant == "vision"
    assert networks.state().kept["subnet", "red/a"].tenant == "vision"
    put(networks, LONER, "vpc", "mine", cidrs=["10.0.0.0/16"])
    assert networks.state().kept["vpc", "mine"].tenant == "loner"
    put(networks, ROOT, "vpc", "theirs", cidrs=["10.0.0.0/16"], tenant="speech")
    assert put(networks, EVE, "vpc", "theirs", cidrs=["10.0.0.0/16", "10.1.0.0/16"]).tenant == "speech"
    refused(Reason.NOT_FOUND, put, networks, ROOT, "vpc", "typo", cidrs=["10.0.0.0/16"], tenant="visoin")


def test_objects_keep_their_addresses_after_a_restart_of_the_pool(networks: NetworkStore, store: Store) -> None:
    red(networks)
    port = put(networks, ANN, "port", "red/a/web1")
    assert port.spec["addresses"]
    again = pool_networks(store)
    assert again.state().kept == networks.state().kept
    assert again.state().revision == networks.state().revision == 3
    assert [*again.state().networks.items()] == [*networks.state().networks.items()]
    assert put(again, ANN, "port", "red/a/web1").generation == 1, "the same again changes nothing"
    assert again.state().revision == 3


def test_refused_or_unwritten_change_changes_nothing(
    networks: NetworkStore, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    red(networks)
    before = networks.state()
    refused(Reason.CONFLICT, put, networks, ANN, "subnet", "red/b", cidrs=["10.0.1.128/25"])
    refused(Reason.NOT_FOUND, put, networks, ANN, "port", "red/z/web1")

    def full(*_: object, **__: object) -> None:
        raise CalabashError("the disk is full", reason=Reason.DISK_FULL, hint="make room")

    with monkeypatch.context() as broken:
        broken.setattr(store.networks, "change", full)
        refused(Reason.DISK_FULL, put, networks, ANN, "port", "red/a/web1")
    assert networks.state() is before
    assert pool_networks(store).state().kept == before.kept


def test_concurrent_writers_check_changes_against_the_changes_of_each_other(store: Store) -> None:
    one, other = pool_networks(store), pool_networks(store)
    red(one)
    first = put(other, ANN, "port", "red/a/web1")
    second = put(one, ANN, "port", "red/a/web2")
    assert first.spec["addresses"] != second.spec["addresses"]
    assert one.state().revision == 4
    refused(Reason.CONFLICT, other.remove, ANN, NetworkKind.SUBNET, "red/a")
    assert other.state().kept == one.state().kept == pool_networks(store).state().kept


def test_concurrent_threads_get_distinct_addresses_for_ports(networks: NetworkStore) -> None:
    red(networks)
    failed: list[Exception] = []

    def add(label: str) -> None:
        try:
            for number in range(20):
                put(networks, ANN, "port", f"red/a/{label}{number}")
        except CalabashError as error:
            failed.append(error)

    threads = [threading.Thread(target=add, args=(label,)) for label in "xyz"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [address for row in networks.state().kept.values() for address in row.spec.get("addresses", ())]
    assert not failed
    assert len(found) == len(set(found)) == 60
    assert networks.state().revision == 62


def test_user_of_another_tenant_learns_only_that_a_name_is_taken(networks: NetworkStore) -> None:
    red(networks)
    put(networks, ANN, "port", "red/a/web1", addresses=["10.0.1.11"])
    before = networks.state()
    for there, nowhere in (("red/a/web1", "nil/a/web1"), ("red/a/mine", "nil/a/mine")):
        mine = refused(Reason.NOT_FOUND, put, networks, EVE, "port", there)
        none = refused(Reason.NOT_FOUND, put, networks, EVE, "port", nowhere)
        assert str(mine).replace("red", "nil") == str(none)
        gone = refused(Reason.NOT_FOUND, networks.remove, EVE, NetworkKind.PORT, there)
        assert str(gone).replace("red", "nil") == str(
            refused(Reason.NOT_FOUND, networks.remove, EVE, NetworkKind.PORT, nowhere)
        )
        refused(Reason.NOT_FOUND, networks.usable_port, EVE, there)
    taken = refused(Reason.CONFLICT, put, networks, EVE, "vpc", "red", cidrs=["10.0.0.0/16"])
    assert "vision" not in str(taken)
    assert "10." not in str(taken)
    refused(Reason.NOT_PERMITTED, put, networks, EVE, "vpc", "mine", cidrs=["10.0.0.0/16"], tenant="vision")
    refused(Reason.NOT_PERMITTED, put, networks, GUEST, "port", "red/a/web2")
    refused(Reason.NOT_PERMITTED, networks.remove, GUEST, NetworkKind.PORT, "red/a/web1")
    refused(Reason.NOT_PERMITTED, put, networks, ANN, "port", "red/a/x-mine")
    assert networks.state() is before
    assert networks.usable_port(ANN, "red/a/web1").name == "red/a/web1"


def test_objects_of_the_provider_network_need_an_administrator(networks: NetworkStore) -> None:
    red(networks)
    refused(Reason.NOT_PERMITTED, put, networks, ANN, "uplink", "up", cidr="198.51.100.0/24", gateway="198.51.100.1")
    refused(
        Reason.NOT_PERMITTED,
        put,
        networks,
        ANN,
        "line",
        "red/dc1",
        vlan=100,
        cidr="172.16.0.0/30",
        address="172.16.0.1",
        peer="172.16.0.2",
    )


def test_refusals_do_not_contain_names_of_objects_of_other_tenants(networks: NetworkStore) -> None:
    red(networks)
    port, vpc = NetworkName("red/a/web1"), NetworkName("red")
    message = Message("10.9.0.1 is taken by port {port} of VPC {vpc}, asked red/a", port=port, vpc=vpc)
    hint = Message("see {vpc}", vpc=vpc)
    error = CalabashError(message, reason=Reason.CONFLICT, hint=hint)
    told = networks.rights.redacted_error(EVE, networks.state().kept, error)
    assert told.message == "10.9.0.1 is taken by port (another's) of VPC (another's), asked red/a"
    assert told.hint == "see (another's)"
    assert str(networks.rights.redacted_error(ANN, networks.state().kept, error)) == str(error)
    ranges = CalabashError("10.0.0.0/16 overlaps 10.0.1.0/24", reason=Reason.CONFLICT)
    assert networks.rights.redacted_error(EVE, networks.state().kept, ranges).message == ranges.message


def test_number_of_vpcs_of_a_tenant_is_limited(networks: NetworkStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rights, "VPCS_PER_TENANT_MAX", 2)
    for name in ("one", "two"):
        put(networks, ANN, "vpc", name, cidrs=["10.0.0.0/16"])
    told = refused(Reason.USER_LIMIT, put, networks, ANN, "vpc", "three", cidrs=["10.0.0.0/16"])
    assert "tenant vision has 2 VPCs" in told.message
    put(networks, EVE, "vpc", "three", cidrs=["10.0.0.0/16"])
    put(networks, ROOT, "vpc", "four", cidrs=["10.0.0.0/16"], tenant="vision")


def test_limits_of_a_tenant_hold_for_concurrent_requests(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = ((NetworkKind.EIP, 0), (NetworkKind.PORT, 3), (NetworkKind.VPC, 1))
    monkeypatch.setitem(cast("dict[str, Tenant]", PEOPLE.tenants), "vision", Tenant(name="vision", networks=bounds))
    networks_of_processes = [pool_networks(store), pool_networks(store)]  # like two processes with one database
    red(networks_of_processes[0])
    told = refused(Reason.USER_LIMIT, put, networks_of_processes[1], ANN, "vpc", "blue", cidrs=["10.0.0.0/16"])
    assert told.message == "tenant vision has 1 of kind vpc and requests 1 more, at most 1"
    assert told.hint.endswith("calabash tenant set vision --networks vpc=2")

    def many(number: int) -> int:
        made = 0
        for port in range(4):
            with suppress(CalabashError):
                put(networks_of_processes[number], ANN, "port", f"red/a/p{number}-{port}")
                made += 1
        return made

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(many, range(2))) <= 3
    for port in range(4):  # a concurrent request may have been refused once
        with suppress(CalabashError):
            put(networks_of_processes[0], ANN, "port", f"red/a/q{port}")
    assert sum(kind == "port" for kind, _ in networks_of_processes[0].state().kept) == 3
    put(networks_of_processes[0], ROOT, "port", "red/a/by-root")
    put(networks_of_processes[0], EVE, "vpc", "speechs", cidrs=["10.0.0.0/16"])


def test_create_and_update_with_an_outdated_generation_are_refused(networks: NetworkStore) -> None:
    red(networks)
    subnet = decode(NetworkKind.SUBNET, "red/a", {"cidrs": ["10.0.1.0/24"]})
    assert networks.put(ANN, subnet, new=True).generation == 1
    other = decode(NetworkKind.SUBNET, "red/a", {"cidrs": ["10.0.1.0/24"], "dhcp": True})
    assert "exists already" in refused(Reason.CONFLICT, networks.put, ANN, other, new=True).message
    assert networks.put(ANN, other, generation=1).generation == 2
    assert "has generation 2, not 1" in refused(Reason.CONFLICT, networks.put, ANN, subnet, generation=1).message


def test_snapshot_contains_changes_since_a_revision_or_everything_after_a_gap(
    networks: NetworkStore, store: Store
) -> None:
    red(networks)
    known = networks.state().revision
    assert networks.since(known) == (networks.state(), frozenset())
    put(networks, ANN, "port", "red/a/web1")
    put(networks, ANN, "port", "red/a/web2")
    networks.remove(ANN, NetworkKind.PORT, "red/a/web1")
    told = snapshot(*networks.since(known))
    assert [(one.kind, one.name) for one in told.objects] == [("port", "red/a/web2")]
    assert [one.name for one in told.removed] == ["red/a/web1"]
    assert not told.whole
    assert told.revision == known + 3
    for unknown in (-1, known + 9):
        whole = snapshot(*networks.since(unknown))
        assert whole.whole
        assert len(whole.objects) == len(networks.state().kept)
    assert snapshot(*pool_networks(store).since(known)).whole, (
        "a pool that began anew does not know what changed before"
    )


def test_waiter_is_notified_of_changes_but_not_of_reports(networks: NetworkStore) -> None:
    red(networks)
    calls: list[int] = []
    with networks.notifying(lambda: calls.append(networks.state().revision)):
        put(networks, ANN, "port", "red/a/web1")
        networks.report({("port", "red/a/web1"): {"observed_generation": 1, "conditions": [], "host": "h1"}})
    put(networks, ANN, "port", "red/a/web2")
    assert calls == [3]


def test_reports_are_shown_and_stored_except_for_deleted_objects(networks: NetworkStore, store: Store) -> None:
    red(networks)
    put(networks, ANN, "port", "red/a/web1")
    condition = {"kind": "realized", "holds": True, "reason": "carried_out", "message": "", "since_s": 7.0}
    status = {"observed_generation": 1, "conditions": [condition], "host": "h1"}
    assert networks.report({("port", "red/a/web1"): status, ("port", "red/a/gone"): status}) == 1
    view = shown(pool_networks(store).state().kept["port", "red/a/web1"])
    assert view.status.host == "h1"
    assert [(c.kind, c.holds) for c in view.status.conditions] == [("valid", True), ("realized", True)]
    put(networks, ANN, "sg", "red/web")
    moved = put(networks, ANN, "port", "red/a/web1", security_groups=["red/web"])
    assert shown(moved).status.observed_generation == 1
    assert shown(moved).generation == 2


def test_vpc_with_contents_is_deleted_only_on_request(networks: NetworkStore) -> None:
    red(networks)
    refused(Reason.CONFLICT, networks.remove, ANN, NetworkKind.VPC, "red")
    networks.remove(ANN, NetworkKind.VPC, "red", cascade=True)
    assert not networks.state().kept
    assert not [*networks.state().networks.items()]


def test_conditions_of_two_reporters_are_merged_and_keep_their_times(networks: NetworkStore) -> None:
    red(networks)
    put(networks, ANN, "port", "red/a/web1")
    key = ("port", "red/a/web1")

    def told(kind: str, holds: bool, since_s: float, **more: object) -> dict[str, object]:
        one = {"kind": kind, "holds": holds, "reason": "so", "message": "", "since_s": since_s}
        return {"observed_generation": 0, "conditions": [one], "host": "", **more}

    networks.report({key: told("ready", True, 5.0)}, {key})
    networks.report({key: told("realized", True, 6.0, observed_generation=1, host="h1")})
    networks.report({key: told("ready", True, 7.0)}, {key})  # reported by a restarted controller
    status = networks.state().kept[key].status
    assert [(one["kind"], one["since_s"]) for one in status["conditions"]] == [("realized", 6.0), ("ready", 5.0)]
    assert (status["observed_generation"], status["host"]) == (1, "h1")
    networks.report({key: told("ready", False, 8.0)}, {key})
    assert networks.state().kept[key].status["conditions"][1]["since_s"] == 8.0


def test_waiting_request_is_answered_when_the_server_ends(networks: NetworkStore) -> None:
    async def ended() -> bool:
        waiting = asyncio.create_task(_wait_for_change(networks, networks.state().revision, 3600.0))
        await asyncio.sleep(0)  # let it start to wait
        assert not waiting.done()
        networks.end()
        await asyncio.wait_for(waiting, 60.0)
        await _wait_for_change(networks, networks.state().revision, 3600.0)  # later requests do not wait
        return True

    assert asyncio.run(ended())
