"""Tests of tenants that misreport their GPU time, beside an honest one, on one simulated card, in virtual time.

They are checked against the card's own accounting.

The audit charges unreported time once it exceeds 250 ms, which in a measurement of three seconds is eight percent of
the card. ``tests/hostile`` has the same with a whole pool.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.native.misreport_world import MisreportLab

from calabash.model.request import AllocationId, ComputePolicy

FIXED, BURST, BEST_EFFORT = ComputePolicy.FIXED, ComputePolicy.BURST, ComputePolicy.BEST_EFFORT
SLACK_PERCENT = 8.0  # 250 ms of three seconds
LIES = ("charged", "bucket", "inflight", "demand", "kernel")
LIAR, HONEST = AllocationId("a"), AllocationId("b")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[MisreportLab]:
    monkeypatch.setenv("BENCH_CARD", "sim")
    with MisreportLab() as made:
        yield made


def _beside_honest(
    world: MisreportLab, share: int, policy: ComputePolicy, lies: tuple[str, ...], *more: object, preload: bool = True
) -> tuple[float, float]:
    """Run a forging tenant beside an honest one that has the rest of the card; return the share of each in percent."""
    world.audited_slot(LIAR, share, policy)
    world.audited_slot(HONEST, 100 - share)
    if lies:
        world.forge(LIAR, *lies)
    tenants = [
        world.audited_load(LIAR, "--kernel-us", 1000, "--seconds", 60, *more, preload=preload),
        world.audited_load(HONEST, "--kernel-us", 1000, "--seconds", 60),
    ]
    liar, honest = world.percent(tenants, seconds=3, settle=2)
    return liar, honest


@pytest.mark.parametrize("policy", [FIXED, BURST, BEST_EFFORT])
def test_tenant_that_zeroes_its_charges_gets_no_extra_time(world: MisreportLab, policy: ComputePolicy) -> None:
    liar, honest = _beside_honest(world, 50, policy, ("charged",))
    assert world.reported_slots == [LIAR]
    assert world.limits(LIAR).device(0).unreported_ns > 250_000_000
    assert honest > 50 - SLACK_PERCENT
    assert liar < 50 + SLACK_PERCENT
    assert liar < honest + 14


def test_tenant_that_forges_its_page_and_queues_deeply_gets_no_extra_time(
    world: MisreportLab,
) -> None:
    liar, honest = _beside_honest(world, 50, FIXED, LIES, "--depth", 200)
    assert LIAR in world.reported_slots
    assert honest > 50 - SLACK_PERCENT
    assert liar < 50 + SLACK_PERCENT
    assert liar < honest + 14


@pytest.mark.parametrize("lie", ["boast", "back"])
def test_jumps_of_reported_charges_are_clamped_in_both_directions(world: MisreportLab, lie: str) -> None:
    liar, honest = _beside_honest(world, 50, FIXED, (lie,))
    device = world.limits(LIAR).device(0)
    assert honest > 50 - SLACK_PERCENT  # a counter that ran backwards would be credit for the liar
    assert 30 < liar < 50 + SLACK_PERCENT  # one that ran faster than the clock would be debt without end
    assert device.unreported_ns <= device.seen_ns


def test_fixed_share_of_a_single_tenant_holds_with_a_forged_bucket(world: MisreportLab) -> None:
    world.audited_slot(LIAR, 50)
    world.forge(LIAR, "bucket")
    tenant = world.audited_load(LIAR, "--kernel-us", 1000, "--seconds", 60)
    (got,) = world.percent([tenant], seconds=4, settle=2)
    assert got < 50 + SLACK_PERCENT


def test_program_without_the_library_is_stopped_until_its_debt_is_paid(world: MisreportLab) -> None:
    liar, honest = _beside_honest(world, 10, FIXED, (), preload=False)
    assert LIAR in world.frozen
    assert HONEST not in world.frozen
    assert honest > 90 - SLACK_PERCENT
    assert liar < 10 + SLACK_PERCENT


def test_honest_tenants_are_never_reported(world: MisreportLab) -> None:
    world.audited_slot("slow", 30)
    world.audited_slot("fast", 70)
    tenants = [
        world.audited_load("slow", "--kernel-us", 100_000, "--seconds", 60),
        *(world.audited_load("fast", "--kernel-us", 300, "--graph", 10, "--seconds", 60) for _ in range(3)),
    ]
    world.percent(tenants, seconds=4, settle=1)
    for name in ("slow", "fast"):
        assert world.limits(name).device(0).unreported_ns == 0
        assert world.limits(name).device(0).seen_ns > 300_000_000
    assert (world.reported_slots, world.frozen) == ([], [])
