"""The book of networks of a pool: kept before it is answered, judged again when somebody else was first, and whose it is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
from tests.unit.networks.people import ANN, EVE, GUEST, LONER, PEOPLE, ROOT, book_of, put, red, refused

from calabash.model.errors import CalabashError, Reason
from calabash.model.mentions import Mentioned, mention
from calabash.model.network import NetworkKind
from calabash.model.tenancy import Tenant
from calabash.net.objects.specs import decode
from calabash.operations import network_rights
from calabash.operations.handlers.networks import _later
from calabash.operations.network_views import shown, snapshot
from calabash.operations.networks import NetworkBook
from calabash.seams.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path}/pool.db")
    yield opened
    opened.close()


@pytest.fixture
def book(store: Store) -> NetworkBook:
    return book_of(store)


def test_a_vpc_is_of_its_makers_tenant_and_comes_with_the_group_in_which_its_ports_are(book: NetworkBook) -> None:
    red(book)
    assert book.state().kept["vpc", "red"].tenant == "vision"
    assert book.state().kept["sg", "red/default"].tenant == "vision"
    assert book.state().kept["subnet", "red/a"].tenant == "vision"
    put(book, LONER, "vpc", "mine", cidrs=["10.0.0.0/16"])
    assert book.state().kept["vpc", "mine"].tenant == "loner"
    put(book, ROOT, "vpc", "theirs", cidrs=["10.0.0.0/16"], tenant="speech")
    assert put(book, EVE, "vpc", "theirs", cidrs=["10.0.0.0/16", "10.1.0.0/16"]).tenant == "speech"
    refused(Reason.NOT_FOUND, put, book, ROOT, "vpc", "typo", cidrs=["10.0.0.0/16"], tenant="visoin")


def test_what_was_put_is_there_in_the_next_pool_with_the_same_addresses(book: NetworkBook, store: Store) -> None:
    red(book)
    port = put(book, ANN, "port", "red/a/web1")
    assert port.spec["addresses"]
    again = book_of(store)
    assert again.state().kept == book.state().kept
    assert again.state().revision == book.state().revision == 3
    assert [*again.state().networks.items()] == [*book.state().networks.items()]
    assert put(again, ANN, "port", "red/a/web1").generation == 1, "the same again changes nothing"
    assert again.state().revision == 3


def test_a_change_that_is_refused_or_cannot_be_written_leaves_everything_as_it_was(
    book: NetworkBook, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    red(book)
    before = book.state()
    refused(Reason.CONFLICT, put, book, ANN, "subnet", "red/b", cidrs=["10.0.1.128/25"])
    refused(Reason.NOT_FOUND, put, book, ANN, "port", "red/z/web1")

    def full(*_: object, **__: object) -> None:
        raise CalabashError("the disk is full", reason=Reason.DISK_FULL, hint="make room")

    with monkeypatch.context() as broken:
        broken.setattr(store.networks, "change", full)
        refused(Reason.DISK_FULL, put, book, ANN, "port", "red/a/web1")
    assert book.state() is before
    assert book_of(store).state().kept == before.kept


def test_of_two_writers_with_books_of_their_own_each_judges_by_what_the_other_has_written(store: Store) -> None:
    one, other = book_of(store), book_of(store)
    red(one)
    first = put(other, ANN, "port", "red/a/web1")
    second = put(one, ANN, "port", "red/a/web2")
    assert first.spec["addresses"] != second.spec["addresses"]
    assert one.state().revision == 4
    refused(Reason.CONFLICT, other.remove, ANN, NetworkKind.SUBNET, "red/a")
    assert other.state().kept == one.state().kept == book_of(store).state().kept


def test_two_threads_that_add_ports_get_addresses_that_nobody_else_has(book: NetworkBook) -> None:
    red(book)
    failed: list[Exception] = []

    def add(label: str) -> None:
        try:
            for number in range(20):
                put(book, ANN, "port", f"red/a/{label}{number}")
        except CalabashError as error:
            failed.append(error)

    threads = [threading.Thread(target=add, args=(label,)) for label in "xyz"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [address for row in book.state().kept.values() for address in row.spec.get("addresses", ())]
    assert not failed
    assert len(found) == len(set(found)) == 60
    assert book.state().revision == 62


def test_whoever_is_of_another_tenant_learns_no_more_than_that_a_name_is_taken(book: NetworkBook) -> None:
    red(book)
    put(book, ANN, "port", "red/a/web1", addresses=["10.0.1.11"])
    before = book.state()
    for there, nowhere in (("red/a/web1", "nil/a/web1"), ("red/a/mine", "nil/a/mine")):
        mine = refused(Reason.NOT_FOUND, put, book, EVE, "port", there)
        none = refused(Reason.NOT_FOUND, put, book, EVE, "port", nowhere)
        assert str(mine).replace("red", "nil") == str(none)
        gone = refused(Reason.NOT_FOUND, book.remove, EVE, NetworkKind.PORT, there)
        assert str(gone).replace("red", "nil") == str(
            refused(Reason.NOT_FOUND, book.remove, EVE, NetworkKind.PORT, nowhere)
        )
        refused(Reason.NOT_FOUND, book.usable_port, EVE, there)
    taken = refused(Reason.CONFLICT, put, book, EVE, "vpc", "red", cidrs=["10.0.0.0/16"])
    assert "vision" not in str(taken)
    assert "10." not in str(taken)
    refused(Reason.NOT_PERMITTED, put, book, EVE, "vpc", "mine", cidrs=["10.0.0.0/16"], tenant="vision")
    refused(Reason.NOT_PERMITTED, put, book, GUEST, "port", "red/a/web2")
    refused(Reason.NOT_PERMITTED, book.remove, GUEST, NetworkKind.PORT, "red/a/web1")
    refused(Reason.NOT_PERMITTED, put, book, ANN, "port", "red/a/x-mine")
    assert book.state() is before
    assert book.usable_port(ANN, "red/a/web1").name == "red/a/web1"


def test_what_is_of_the_providers_network_is_an_administrators(book: NetworkBook) -> None:
    red(book)
    refused(Reason.NOT_PERMITTED, put, book, ANN, "uplink", "up", cidr="198.51.100.0/24", gateway="198.51.100.1")
    refused(
        Reason.NOT_PERMITTED,
        put,
        book,
        ANN,
        "line",
        "red/dc1",
        vlan=100,
        cidr="172.16.0.0/30",
        address="172.16.0.1",
        peer="172.16.0.2",
    )


def test_names_of_anothers_objects_are_not_told_in_what_is_refused(book: NetworkBook) -> None:
    red(book)
    port, vpc = mention(Mentioned.NETWORK, "red/a/web1"), mention(Mentioned.NETWORK, "red")
    message, hint = f"10.9.0.1 is taken by port {port} of VPC {vpc}, asked red/a", f"see {vpc}"
    error = CalabashError(message, reason=Reason.CONFLICT, hint=hint)
    told = book.rights.told(EVE, book.state().kept, error)
    assert told.message == "10.9.0.1 is taken by port (another's) of VPC (another's), asked red/a"
    assert told.hint == "see (another's)"
    assert str(book.rights.told(ANN, book.state().kept, error)) == str(error)
    ranges = CalabashError("10.0.0.0/16 overlaps 10.0.1.0/24", reason=Reason.CONFLICT)
    assert book.rights.told(EVE, book.state().kept, ranges).message == ranges.message


def test_a_tenant_has_so_many_vpcs_and_no_more(book: NetworkBook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_rights, "VPCS_PER_TENANT_MAX", 2)
    for name in ("one", "two"):
        put(book, ANN, "vpc", name, cidrs=["10.0.0.0/16"])
    told = refused(Reason.USER_LIMIT, put, book, ANN, "vpc", "three", cidrs=["10.0.0.0/16"])
    assert "tenant vision has 2 VPCs" in told.message
    put(book, EVE, "vpc", "three", cidrs=["10.0.0.0/16"])
    put(book, ROOT, "vpc", "four", cidrs=["10.0.0.0/16"], tenant="vision")


def test_a_tenant_has_so_many_objects_of_a_kind_as_an_administrator_says_also_of_two_that_ask_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = ((NetworkKind.EIP, 0), (NetworkKind.PORT, 3), (NetworkKind.VPC, 1))
    monkeypatch.setitem(cast("dict[str, Tenant]", PEOPLE.tenants), "vision", Tenant(name="vision", networks=bounds))
    books = [book_of(store), book_of(store)]  # as two processes at one database
    red(books[0])
    told = refused(Reason.USER_LIMIT, put, books[1], ANN, "vpc", "blue", cidrs=["10.0.0.0/16"])
    assert told.message == "tenant vision has 1 of kind vpc and asks for 1 more, at most 1"
    assert told.hint.endswith("calabash tenant set vision --networks vpc=2")

    def many(number: int) -> int:
        made = 0
        for port in range(4):
            with suppress(CalabashError):
                put(books[number], ANN, "port", f"red/a/p{number}-{port}")
                made += 1
        return made

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(many, range(2))) <= 3
    for port in range(4):  # of two at once one may have been told to ask again
        with suppress(CalabashError):
            put(books[0], ANN, "port", f"red/a/q{port}")
    assert sum(kind == "port" for kind, _ in books[0].state().kept) == 3
    put(books[0], ROOT, "port", "red/a/by-root")
    put(books[0], EVE, "vpc", "speechs", cidrs=["10.0.0.0/16"])


def test_create_and_change_of_what_somebody_has_changed_meanwhile_are_refused(book: NetworkBook) -> None:
    red(book)
    subnet = decode(NetworkKind.SUBNET, "red/a", {"cidrs": ["10.0.1.0/24"]})
    assert book.put(ANN, subnet, new=True).generation == 1
    other = decode(NetworkKind.SUBNET, "red/a", {"cidrs": ["10.0.1.0/24"], "dhcp": True})
    assert "is there already" in refused(Reason.CONFLICT, book.put, ANN, other, new=True).message
    assert book.put(ANN, other, generation=1).generation == 2
    assert "has generation 2, not 1" in refused(Reason.CONFLICT, book.put, ANN, subnet, generation=1).message


def test_who_knows_a_revision_is_told_what_changed_since_and_after_a_gap_everything(
    book: NetworkBook, store: Store
) -> None:
    red(book)
    known = book.state().revision
    assert book.since(known) == (book.state(), frozenset())
    put(book, ANN, "port", "red/a/web1")
    put(book, ANN, "port", "red/a/web2")
    book.remove(ANN, NetworkKind.PORT, "red/a/web1")
    told = snapshot(*book.since(known))
    assert [(one.kind, one.name) for one in told.objects] == [("port", "red/a/web2")]
    assert [one.name for one in told.removed] == ["red/a/web1"]
    assert not told.whole
    assert told.revision == known + 3
    for unknown in (-1, known + 9):
        whole = snapshot(*book.since(unknown))
        assert whole.whole
        assert len(whole.objects) == len(book.state().kept)
    assert snapshot(*book_of(store).since(known)).whole, "a pool that began anew does not know what changed before"


def test_who_waits_is_called_after_a_change_and_not_after_a_report(book: NetworkBook) -> None:
    red(book)
    calls: list[int] = []
    with book.called(lambda: calls.append(book.state().revision)):
        put(book, ANN, "port", "red/a/web1")
        book.report({("port", "red/a/web1"): {"observed_generation": 1, "conditions": [], "host": "h1"}})
    put(book, ANN, "port", "red/a/web2")
    assert calls == [3]


def test_what_is_reported_is_shown_and_kept_and_of_what_is_gone_it_is_left_out(book: NetworkBook, store: Store) -> None:
    red(book)
    put(book, ANN, "port", "red/a/web1")
    condition = {"kind": "realized", "holds": True, "reason": "carried_out", "message": "", "since_s": 7.0}
    status = {"observed_generation": 1, "conditions": [condition], "host": "h1"}
    assert book.report({("port", "red/a/web1"): status, ("port", "red/a/gone"): status}) == 1
    view = shown(book_of(store).state().kept["port", "red/a/web1"])
    assert view.status.host == "h1"
    assert [(c.kind, c.holds) for c in view.status.conditions] == [("valid", True), ("realized", True)]
    put(book, ANN, "sg", "red/web")
    moved = put(book, ANN, "port", "red/a/web1", security_groups=["red/web"])
    assert shown(moved).status.observed_generation == 1
    assert shown(moved).generation == 2


def test_a_vpc_goes_with_all_that_is_in_it_only_when_that_is_said(book: NetworkBook) -> None:
    red(book)
    refused(Reason.CONFLICT, book.remove, ANN, NetworkKind.VPC, "red")
    book.remove(ANN, NetworkKind.VPC, "red", cascade=True)
    assert not book.state().kept
    assert not [*book.state().networks.items()]


def test_conditions_that_two_tell_stand_beside_each_other_and_keep_their_time(book: NetworkBook) -> None:
    red(book)
    put(book, ANN, "port", "red/a/web1")
    key = ("port", "red/a/web1")

    def told(kind: str, holds: bool, since_s: float, **more: object) -> dict[str, object]:
        one = {"kind": kind, "holds": holds, "reason": "so", "message": "", "since_s": since_s}
        return {"observed_generation": 0, "conditions": [one], "host": "", **more}

    book.report({key: told("ready", True, 5.0)}, {key})
    book.report({key: told("realized", True, 6.0, observed_generation=1, host="h1")})
    book.report({key: told("ready", True, 7.0)}, {key})  # by one that began anew
    status = book.state().kept[key].status
    assert [(one["kind"], one["since_s"]) for one in status["conditions"]] == [("realized", 6.0), ("ready", 5.0)]
    assert (status["observed_generation"], status["host"]) == (1, "h1")
    book.report({key: told("ready", False, 8.0)}, {key})
    assert book.state().kept[key].status["conditions"][1]["since_s"] == 8.0


def test_who_waits_for_news_is_answered_when_the_server_ends(book: NetworkBook) -> None:
    async def ended() -> bool:
        waiting = asyncio.create_task(_later(book, book.state().revision, 3600.0))
        await asyncio.sleep(0)  # until it waits
        assert not waiting.done()
        book.end()
        await asyncio.wait_for(waiting, 60.0)
        await _later(book, book.state().revision, 3600.0)  # and who comes after that does not wait at all
        return True

    assert asyncio.run(ended())
