"""Counters of GPU time: equal to the sum of the records, and never decreasing."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.node.metering.test_open_usage import Node
from tests.unit.node.metering.test_usage_tracker import _slot

from calabash.model.allocation import UsageRecord
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId
from calabash.node.metering import usage_totals
from calabash.node.metering.interval import Moment
from calabash.node.metering.meters import Meters
from calabash.node.metering.usage_totals import GpuTime, UsageTotals
from calabash.node.metering.usage_tracker import CHECKPOINT_NS, UsageTracker

VISION = ("vision",)


def record(**changes: object) -> UsageRecord:
    base = UsageRecord(
        allocation=AllocationId("a1"), device=DeviceUuid("GPU-1"), tenant="vision", queue="vision/train", project="train",
        from_s=100.0, to_s=110.0, memory_mib=1, core_percent=50, allocated_gpu_s=5.0, used_gpu_s=2.0, memory_mib_s=10.0,
        idle_s=4.0,
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


def test_usage_of_projects_adds_up_to_their_tenant_and_idle_time_is_of_whole_devices() -> None:
    totals = UsageTotals()
    totals.add([record(), record(project="")])
    found = totals.with_open([record(project="test")])
    assert found[VISION] == GpuTime(allocated_s=15, used_s=6, idle_s=6)
    assert found["vision", "train"] == found["vision", "test"] == GpuTime(allocated_s=5, used_s=2, idle_s=2)
    assert set(found) == {VISION, ("vision", "train"), ("vision", "test")}


def test_interval_of_an_earlier_pool_counts_from_the_last_round_of_that_pool() -> None:
    totals = UsageTotals(since_s=108.0)
    totals.add([record(), record(from_s=90.0, to_s=100.0)])
    found = totals.with_open([])[VISION]
    assert (found.allocated_s, found.used_s, found.idle_s) == pytest.approx((1, 0.4, 0.4))


def test_number_of_counters_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_totals, "KEYS_MAX", 10)
    totals = UsageTotals()
    for number in range(100):
        totals.add([record(project=f"p{number}")])
        assert len(totals.with_open([])) <= 11


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["run", "checkpoint", "write", "away", "close"]), st.floats(0.001, 100), st.floats(0, 1.5)
        ),
        max_size=20,
    )
)
def test_totals_never_decrease_and_equal_written_plus_open_usage(steps: list[tuple[str, float, float]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        node = Node(slots=_slot(Path(directory)))
        granted = node.grant()
        before = GpuTime()
        for what, seconds, part in steps:
            node.clock.advance(seconds)
            if node.held:
                ledger = node.usage_tracker._entries[granted.id]
                ledger.sampled_ns[0] += round(seconds * part * 1e9)
                ledger.idle_ns[0] += round(seconds * (1.5 - part) * 1e9)
            node.away = what == "away"
            if not node.held:
                node.away = False
            if what in {"write", "away"}:
                with pytest.raises(CalabashError) if node.away else nullcontext():
                    node.usage_tracker.write(node.held, node)  # type: ignore[arg-type]
            elif what == "checkpoint":
                node.clock.advance(CHECKPOINT_NS / 1e9)
                node.usage_tracker.checkpoint(node.held, node)  # type: ignore[arg-type]
            elif what == "close" and node.held:
                node.add_usage(node.usage_tracker.close(granted))
                node.held = []
            now = node.open.totals().get(VISION, GpuTime())
            assert now.at_least(before) == now
            before = now
            told = [] if not node.held else node.usage_tracker.preview(node.held)
            known = node.written.records
            whole = [*node.written.all, *(r for r in told if (r.allocation, r.device, r.sequence) not in known)]
            assert now.allocated_s == pytest.approx(sum(r.allocated_gpu_s for r in whole))
            assert now.used_s == pytest.approx(sum(r.used_gpu_s for r in whole))


def test_restarted_pool_counts_from_0_and_counts_the_gap_once(tmp_path: Path) -> None:
    node = Node(slots=_slot(tmp_path))
    granted = node.grant()
    node.clock.advance(100)
    node.usage_tracker.write(node.held, node)  # type: ignore[arg-type]
    node.clock.advance(30)
    told = node.open.totals()[VISION].allocated_s
    mark = Moment(boot="", monotonic_ns=node.clock.monotonic_ns(), now_s=node.clock.now_s())
    node.clock.advance(20)  # no pool runs
    again = UsageTracker(node.slots, node.clock, meters=Meters(node.clock, mark=mark))
    again.restore(granted, node.written.so_far())
    again.meters.note_living()
    node.clock.advance(10)
    anew = again.totals(node.held)[VISION].allocated_s
    assert (told, anew) == pytest.approx((65, 15))  # of 160 s with half a device
