"""Tenants that lie about their GPU time, beside an honest one, on one simulated card. The card's own books judge.

Wide tolerances, because other work on the machine takes GPU time from both: what counts is that the liar does not live
on its neighbour. ``tests/hostile`` plays the same with a whole pool.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.native.truth_world import TruthLab

from calabash.model.request import AllocationId, ComputePolicy

FIXED, BURST, BEST_EFFORT = ComputePolicy.FIXED, ComputePolicy.BURST, ComputePolicy.BEST_EFFORT
LIES = ("charged", "bucket", "inflight", "demand", "kernel")
LIAR, HONEST = AllocationId("a"), AllocationId("b")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[TruthLab]:
    monkeypatch.setenv("BENCH_CARD", "sim")
    with TruthLab() as made:
        yield made


def _beside_honest(
    world: TruthLab, share: int, policy: ComputePolicy, lies: tuple[str, ...], *more: object, preload: bool = True
) -> tuple[float, float]:
    """What a liar and its neighbour of a fixed share, the rest of the card, got."""
    world.slot(LIAR, share, policy)
    world.slot(HONEST, 100 - share)
    if lies:
        world.forge(LIAR, *lies)
    tenants = [
        world.load(LIAR, "--kernel-us", 1000, "--seconds", 60, *more, preload=preload),
        world.load(HONEST, "--kernel-us", 1000, "--seconds", 60),
    ]
    liar, honest = world.percent(tenants, seconds=3, settle=2)
    return liar, honest


@pytest.mark.parametrize("policy", [FIXED, BURST, BEST_EFFORT])
def test_a_tenant_that_writes_zero_over_its_charges_takes_nothing_from_its_neighbour(
    world: TruthLab, policy: ComputePolicy
) -> None:
    liar, honest = _beside_honest(world, 50, policy, ("charged",))
    assert world.told == [LIAR]
    assert world.lab.limits(LIAR).device(0).unreported_ns > 250_000_000
    assert honest > 38
    assert liar < honest + 14


def test_a_tenant_that_forges_its_whole_page_and_queues_deeply_takes_nothing_from_its_neighbour(
    world: TruthLab,
) -> None:
    liar, honest = _beside_honest(world, 50, FIXED, LIES, "--depth", 200)
    assert LIAR in world.told
    assert honest > 38
    assert liar < honest + 14


def test_charges_that_jump_forward_and_back_are_believed_in_neither_direction(world: TruthLab) -> None:
    liar, honest = _beside_honest(world, 50, FIXED, ("boast",))
    assert honest > 38
    assert liar < 60


def test_a_fixed_share_holds_alone_too_whatever_the_bucket_says(world: TruthLab) -> None:
    world.slot(LIAR, 50)
    world.forge(LIAR, "bucket")
    tenant = world.load(LIAR, "--kernel-us", 1000, "--seconds", 60)
    (got,) = world.percent([tenant], seconds=4, settle=2)
    assert got < 60


def test_a_program_without_the_library_is_stopped_for_as_long_as_it_owes_time(world: TruthLab) -> None:
    liar, honest = _beside_honest(world, 10, FIXED, (), preload=False)
    assert LIAR in world.frozen
    assert HONEST not in world.frozen
    assert honest > 70
    assert liar < 20


def test_honest_tenants_are_never_told_of(world: TruthLab) -> None:
    world.slot("slow", 30)
    world.slot("fast", 70)
    tenants = [
        world.load("slow", "--kernel-us", 100_000, "--seconds", 60),
        *(world.load("fast", "--kernel-us", 300, "--graph", 10, "--seconds", 60) for _ in range(3)),
    ]
    world.percent(tenants, seconds=4, settle=1)
    for name in ("slow", "fast"):
        assert world.lab.limits(name).device(0).unreported_ns == 0
        assert world.lab.limits(name).device(0).seen_ns > 300_000_000
    assert (world.told, world.frozen) == ([], [])
