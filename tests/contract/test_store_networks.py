"""Objects of networks and certificates in SQLite and PostgreSQL."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from calabash.adapters.store import Store, open_store
from calabash.adapters.store.networks import StoredCertificate, StoredNetworkObject
from calabash.model.errors import CalabashError, Reason

RED = StoredNetworkObject(
    kind="vpc", name="red", tenant="vision", generation=1, spec={"cidrs": ["10.0.0.0/16"], "number": 1}, status={}
)
PORT = replace(RED, kind="port", name="red/a/web1", spec={"mac": "0a:00:00:00:00:01"}, applied=True)
SECRET = StoredCertificate(name="red/tls", certificate="CHAIN", key="zqkey", changed_at=7.5)


def test_written_objects_are_read_by_the_next_pool(url: str) -> None:
    first = open_store(url)
    assert first.networks.load() == ([], 0)
    first.networks.change([RED, PORT], [], before=0, revision=1)
    first.networks.report({("port", "red/a/web1"): {"host": "h1"}, ("port", "gone"): {"host": "h1"}})
    first.networks.put_certificate(SECRET)
    first.close()
    again = open_store(url)
    assert again.networks.load() == ([replace(PORT, status={"host": "h1"}), RED], 1)
    assert again.networks.revision() == 1
    assert again.networks.certificates() == [SECRET]
    again.close()


def test_a_change_replaces_and_keeps_what_was_reported_and_removes(store: Store) -> None:
    networks = store.networks
    networks.change([RED, PORT], [], before=0, revision=1)
    networks.report({("vpc", "red"): {"host": "h1"}})
    networks.change([replace(RED, generation=2, spec={})], [("port", "red/a/web1")], before=1, revision=2)
    assert networks.load() == ([replace(RED, generation=2, spec={}, status={"host": "h1"})], 2)


def test_a_change_of_another_revision_writes_nothing(store: Store) -> None:
    store.networks.change([RED], [], before=0, revision=1)
    with pytest.raises(CalabashError) as told:
        store.networks.change([PORT], [("vpc", "red")], before=0, revision=1)
    assert told.value.reason is Reason.CONFLICT
    assert store.networks.load() == ([RED], 1)


def test_one_of_many_writers_at_the_same_revision_succeeds(url: str) -> None:
    stores = [open_store(url) for _ in range(4)]
    done: list[str] = []

    def write(number: int) -> None:
        try:
            stores[number].networks.change([replace(RED, name=f"v{number}")], [], before=0, revision=1)
        except CalabashError as error:
            done.append(error.reason)
        else:
            done.append("written")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows, revision = stores[0].networks.load()
    for store in stores:
        store.close()
    assert sorted(done) == ["conflict", "conflict", "conflict", "written"]
    assert (len(rows), revision) == (1, 1)


def test_certificates_go_with_their_vpc_and_are_not_shown_by_accident(store: Store) -> None:
    networks = store.networks
    networks.change([RED, replace(RED, name="red-two")], [], before=0, revision=1)
    networks.put_certificate(SECRET)
    networks.put_certificate(replace(SECRET, key="other", changed_at=8.0))
    networks.put_certificate(replace(SECRET, name="red-two/tls"))
    assert "zqkey" not in repr(networks.certificates())
    networks.change([], [("vpc", "red")], before=1, revision=2)
    assert [one.name for one in networks.certificates()] == ["red-two/tls"]
    assert networks.delete_certificate("red-two/tls")
    assert not networks.delete_certificate("red-two/tls")
