"""Usage that waits on a node and usage that is collected, in every supported database."""

from __future__ import annotations

from dataclasses import replace

from tests.contract.test_store import _record, _usage

from calabash.adapters.store import Store
from calabash.adapters.store.usage.outbox import NumberedUsage
from calabash.model.allocation import AllocationState

EPOCH = "0" * 32


def numbered(*numbers: int) -> list[NumberedUsage]:
    return [NumberedUsage(number=n, record=_usage(from_s=10.0 * n)) for n in numbers]


def test_intervals_of_a_source_are_written_once_and_without_a_gap(store: Store) -> None:
    collected = store.collected
    assert collected.last("n1", EPOCH) == 0
    assert collected.commit("n1", EPOCH, numbered(1, 2, 5), after=0, at_s=1.0) == 5
    assert collected.commit("n1", EPOCH, numbered(2, 5, 6), after=1, at_s=2.0) == 6
    assert collected.commit("n1", EPOCH, numbered(9), after=8, at_s=3.0) == 6, "7 and 8 are missing"
    assert collected.commit("n1", EPOCH, numbered(9), after=8, lost=True, at_s=4.0) == 9
    assert [one.from_s for one in store.usage()] == [10.0, 20.0, 50.0, 60.0, 90.0]


def test_the_same_numbers_of_two_sources_are_two_intervals(store: Store) -> None:
    for node, epoch in (("n1", EPOCH), ("n2", EPOCH), ("n1", "1" * 32)):
        assert store.collected.commit(node, epoch, numbered(1), after=0, at_s=1.0) == 1
    assert len(store.usage()) == 3
    assert [(one.node, one.last) for one in store.collected.sources()] == [("n1", 1), ("n1", 1), ("n2", 1)]


def test_a_database_has_one_name_and_its_rows_wait_until_they_are_acknowledged(store: Store) -> None:
    outbox = store.outbox
    assert outbox.epoch() == outbox.epoch()
    store.add_usage([replace(_usage(from_s=10.0 * i), sequence=i) for i in range(4)])
    first = outbox.after(0, limit=3)
    assert (outbox.waiting(), outbox.marks().sent) == (4, first[-1].number)
    outbox.acknowledge(first[1].number)
    assert outbox.waiting() == 2
    assert [one.record.sequence for one in outbox.after(outbox.marks().acked, limit=9)] == [2, 3]
    outbox.acknowledge(first[0].number)
    assert outbox.waiting() == 2, "what is acknowledged stays so"
    assert outbox.go_back(first[0].number).acked == first[0].number


def test_a_name_that_is_granted_again_keeps_what_was_metered_of_the_earlier_grant(store: Store) -> None:
    first = replace(_record(), granted_at=100.0)
    store.grant(first)
    store.release(first.id, at=110.0, reason="done", explanation="", usage=[_usage(from_s=100.0)])
    second = replace(first, granted_at=200.0)
    store.grant(second)
    store.grant(second)
    store.add_usage([_usage(from_s=200.0)])
    assert [one.from_s for one in store.usage()] == [100.0, 200.0]
    assert [(one.state, one.granted_at) for one in store.allocations(ended=True)] == [
        (AllocationState.RELEASED, 100.0),
        (AllocationState.GRANTED, 200.0),
    ]
