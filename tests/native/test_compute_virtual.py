"""Tests of compute shares of many processes in virtual time, independent of the load of the machine.

Library and arbiter are real, the card is simulated; see ``bench/_virtual.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

import pytest
from bench._virtual import VirtualLab
from bench.shares import LENDER_PART, SHAPES, Meter, Shape, lost_ms, returned_ms, returns

from calabash.model.request import ComputePolicy


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualLab]:
    monkeypatch.setenv("BENCH_CARD", "sim")
    with VirtualLab() as made:
        yield made


def test_virtual_time_passes_only_while_a_process_sleeps(lab: VirtualLab) -> None:
    (tenant,) = Meter(lab).start(None, Shape(name="1ms", kernel_us=1_000), 10)
    before_ns, before = lab.busy_ns()
    assert lab.busy_ns()[0] == before_ns
    lab.sleep(1)
    after_ns, after = lab.busy_ns()
    assert after_ns - before_ns == pytest.approx(1e9, rel=0.001)
    assert after[tenant.pid] - before[tenant.pid] == pytest.approx(1e9, rel=0.001)


@pytest.mark.parametrize("kernel_ms", [1, 10])
def test_two_tenants_of_eight_processes_each_get_their_shares(lab: VirtualLab, kernel_ms: int) -> None:
    shape = Shape(name="8procs", kernel_us=kernel_ms * 1_000, processes=8)
    for name, percent in (("a", 30), ("b", 70)):
        lab.slot(name, core_percent=percent)
    meter = Meter(lab)
    rows = meter.windows([meter.start(name, shape, 10) for name in "ab"], 3)
    few, many = (fmean(row[i] for row in rows) for i in range(2))
    assert few + many >= 97
    assert few / many == pytest.approx(30 / 70, rel=0.05)  # a kernel of 10 ms is one percent of three seconds of 30


@pytest.mark.parametrize("shape", SHAPES[:3], ids=lambda shape: shape.name)
def test_returning_lender_has_its_share_within_30_ms_in_any_phase_of_the_rounds(lab: VirtualLab, shape: Shape) -> None:
    rows = returns(lab, shape, 13)  # 1.7 ms apart: all of a round of 20 ms
    assert max(returned_ms(row, LENDER_PART) for row in rows) <= 30
    assert max(lost_ms(row, LENDER_PART) for row in rows) <= 20


@pytest.mark.parametrize("kernel_us", [200, 2_000])
def test_concurrent_kernels_of_four_streams_are_charged_the_card_time(lab: VirtualLab, kernel_us: int) -> None:
    lab.slot("a", core_percent=40, policy=ComputePolicy.BURST)
    tenant = lab.load("a", "--kernel-us", kernel_us, "--streams", 4, "--seconds", 60)
    lab.sleep(1)
    before_ns, before = lab.busy_ns()
    charged, launched = _told(lab)
    lab.sleep(2)
    after_ns, after = lab.busy_ns()
    later_charged, later_launched = _told(lab)
    had_ns = after[tenant.pid] - before[tenant.pid]
    assert (later_launched - launched) * kernel_us * 1_000 > 2 * had_ns  # they do run side by side
    assert later_charged - charged == pytest.approx(had_ns, rel=0.05)
    assert had_ns / (after_ns - before_ns) > 0.97


def _told(lab: VirtualLab) -> tuple[int, int]:
    usage = lab.usage("a").device(0)
    return usage.charged_ns, usage.launch_count


@pytest.mark.parametrize("percent", [50, 60])
def test_tenant_of_short_kernels_has_its_share_beside_four_tenants_of_two_second_kernels(
    lab: VirtualLab, percent: int
) -> None:
    names = "abcde"
    for name in names:
        lab.slot(name, core_percent=percent if name == "a" else 10)
    meter = Meter(lab)
    short, long = Shape(name="1ms", kernel_us=1_000), Shape(name="2s", kernel_us=2_000_000)
    groups = [meter.start(name, short if name == "a" else long, 100) for name in names]
    rows = meter.windows(groups, 65, settle_s=0)
    begin = fmean(row[0] for row in rows[:30])  # the first kernels, of unknown length, run at the same time for 10 s
    assert begin == pytest.approx(percent, abs=3.5)  # a kernel of 2 s at the end is half paid back: 3.3 points
    rows = rows[25:]
    share, *others = (fmean(row[i] for row in rows) for i in range(len(names)))
    assert share == pytest.approx(percent, abs=2)
    assert others == pytest.approx([10] * 4, abs=5)  # one kernel is 5 points of 40 seconds
    assert share + sum(others) >= 0.95 * (percent + 40)
