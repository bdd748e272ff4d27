"""Usage since the last record: open and written usage together are the held time, counted once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.node.metering.test_usage_tracker import NAME, Written, _record, _slot

from calabash.model.allocation import AllocationRecord, UsageRecord
from calabash.model.errors import CalabashError, Reason
from calabash.node.metering.open_usage import OpenUsage
from calabash.node.metering.usage_tracker import UsageTracker
from calabash.node.slots.files import FileSlots
from calabash_testing.clock import VirtualClock


@dataclass(slots=True)
class Node:
    """A node that holds allocations, with a store that may be unavailable."""

    slots: FileSlots
    clock: VirtualClock = field(default_factory=VirtualClock)
    written: Written = field(default_factory=Written)
    away: bool = False
    held: list[AllocationRecord] = field(default_factory=list)
    usage_tracker: UsageTracker = field(init=False)
    open: OpenUsage = field(init=False)

    def __post_init__(self) -> None:
        self.usage_tracker = UsageTracker(self.slots, self.clock)
        self.open = OpenUsage(lambda: self.held, self.usage_tracker, cast("Any", self), self.clock)

    def add_usage(self, records: Sequence[UsageRecord]) -> None:
        if self.away:
            raise CalabashError("the database is away", reason=Reason.STORE_UNAVAILABLE)
        self.written.add_usage(records)

    def grant(self) -> AllocationRecord:
        record = replace(_record(self.clock), granted_ns=self.clock.monotonic_ns())
        self.held = [record]
        self.usage_tracker.tick(self.held)
        return record

    def counted_s(self) -> float:
        """Seconds that are written, and those that are told beyond them."""
        known = self.written.records
        told = [r for r in self.open.records()[0] if (r.allocation, r.device, r.sequence) not in known]
        return sum(r.to_s - r.from_s for r in (*self.written.all, *told))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(slots=_slot(tmp_path))


def test_usage_of_an_allocation_is_returned_before_its_first_record(node: Node) -> None:
    node.grant()
    node.clock.advance(1.5)
    records, until_s = node.open.records()
    assert [(r.allocation, r.to_s - r.from_s, r.allocated_gpu_s) for r in records] == [(NAME, 1.5, 0.75)]
    assert until_s == node.clock.now_s()
    assert node.written.all == []


def test_frequent_queries_measure_once_a_second_and_write_nothing(node: Node) -> None:
    node.grant()
    seen = set()
    for _ in range(200):
        node.clock.advance(0.05)
        records, until_s = node.open.records()
        seen.add(until_s)
        assert node.clock.now_s() - until_s < 1.01
        assert sum(r.to_s - r.from_s for r in records) == pytest.approx(until_s - node.held[0].granted_at)
    assert len(seen) <= 11
    assert node.written.all == []


def test_frequent_writes_create_at_most_one_record_a_second(node: Node) -> None:
    node.grant()
    for _ in range(200):
        node.clock.advance(0.05)
        until_s, _ = node.open.write()
        assert sum(r.to_s - r.from_s for r in node.written.all) == pytest.approx(until_s - node.held[0].granted_at)
    assert len(node.written.all) <= 11


def test_late_query_does_not_restart_metering_of_an_ended_allocation(node: Node) -> None:
    record = node.grant()
    node.clock.advance(10)
    node.written.add_usage(node.usage_tracker.close(record))
    node.usage_tracker.tick([])  # its meter is dropped here; an earlier reader still holds the record
    node.clock.advance(5)
    assert node.open.records()[0] == []
    node.open.write()
    assert [r.to_s - r.from_s for r in node.written.all] == [10.0]
    assert not node.usage_tracker.meters.is_metered(record)


def test_store_error_is_raised_and_the_interval_is_written_later(node: Node) -> None:
    node.grant()
    node.clock.advance(10)
    node.away = True
    with pytest.raises(CalabashError, match="the database is away"):
        node.open.write()
    node.clock.advance(10)
    assert node.counted_s() == pytest.approx(20)
    node.away = False
    node.open.write()
    node.clock.advance(2)
    node.open.write()
    assert sum(r.to_s - r.from_s for r in node.written.all) == pytest.approx(22)


@settings(max_examples=examples(40), deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["ask", "write", "checkpoint", "fail", "tick"]), st.floats(0.01, 90)), max_size=15
    )
)
def test_written_and_open_usage_add_up_to_the_held_time(
    steps: list[tuple[str, float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    node = Node(slots=_slot(tmp_path_factory.mktemp("slots")))
    record = node.grant()
    for what, seconds in steps:
        node.clock.advance(seconds)
        node.away = what == "fail"
        if what == "ask":
            held_s = node.clock.now_s() - record.granted_at
            assert held_s - 1.01 <= node.counted_s() <= held_s + 1e-6
        elif what in {"write", "fail"}:
            try:
                node.open.write()
            except CalabashError:
                assert node.away
        elif what == "checkpoint":
            node.usage_tracker.checkpoint(node.held, cast("Any", node))
        else:
            node.usage_tracker.tick(node.held)
    node.away = False
    node.written.add_usage(node.usage_tracker.close(record))
    assert sum(r.to_s - r.from_s for r in node.written.all) == pytest.approx(node.clock.now_s() - record.granted_at)
