"""Accounts of the arbiter: unused time, first kernels of unknown length, and rounds in which no window was earned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.model.request import AllocationId
from calabash.node.arbiter.accounts import LAG_NS_MAX, Account, ComputeDemand, settle
from calabash.node.arbiter.charges import overcharged_time, unused_time
from calabash.node.arbiter.policy import SharedDevice, decide
from calabash.node.slots.clamped_counters import KERNEL_NS_MAX, MS, ClampedCounter, LargestStep
from calabash.node.slots.layout import PagePolicy

A, B = AllocationId("a"), AllocationId("b")
SECOND = 1_000 * MS
BEGIN_NS = SECOND
STEP_NS = 2 * MS
UNKNOWN_NS = 50_000  # what the library charges for a launch that was never measured, before it runs


def _demand(percent: int, **fields: int) -> ComputeDemand:
    return ComputeDemand(core_percent=percent, policy=PagePolicy.FIXED, **fields)


def test_time_window_without_a_launch_is_unused() -> None:
    unused_ns, covered_ns = unused_time(0, {}, {A: [(10, 30)]}, since_ns=0, now_ns=40)
    assert (unused_ns, covered_ns) == ({A: 20}, 0)


def test_time_window_is_unused_after_the_charged_work_and_not_before_the_earliest_launch() -> None:
    unused_ns, covered_ns = unused_time(0, {A: 12}, {A: [(10, 30)]}, since_ns=0, now_ns=40)
    assert (unused_ns, covered_ns) == ({A: 8}, 22)


def test_time_window_in_which_work_of_another_container_runs_is_used() -> None:
    granted = {A: [(0, 20)], B: [(20, 40)]}
    unused_ns, covered_ns = unused_time(0, {A: 35}, granted, since_ns=0, now_ns=40)
    assert (unused_ns, covered_ns) == ({A: 0, B: 5}, 35)


def test_work_that_was_charged_before_covers_later_time_windows() -> None:
    unused_ns, covered_ns = unused_time(100, {}, {A: [(10, 30)]}, since_ns=0, now_ns=40)
    assert (unused_ns, covered_ns) == ({A: 0}, 100)


def _first_kernel(charge: Callable[[int], int], beside: Callable[[int], int]) -> tuple[Account, bool]:
    """Return the account of a container whose first kernel runs for 3 s, and True if its demand was ignored at any time.

    Args:
        charge: GPU time that its page has charged when the kernel has run for so many ns.
        beside: the same of the container beside it.
    """
    believed, steps, state = ClampedCounter(), LargestStep(), SharedDevice()
    was_phantom = False
    for passed_ns in range(0, 3 * SECOND, STEP_NS):
        now_ns = BEGIN_NS + passed_ns
        told_ns, launches = charge(passed_ns), int(passed_ns > 0)
        charged_ns = believed.read(told_ns, now_ns, burst_ns=40 * MS, inflight_ns=UNKNOWN_NS)
        first = _demand(
            10,
            waiting_count=1,
            demand_ns=now_ns,
            inflight_ns=UNKNOWN_NS,
            charged_ns=charged_ns,
            kernel_ns=min(KERNEL_NS_MAX, steps.kernel_ns(0, charged_ns, now_ns, launches)),
        )
        other = _demand(90, waiting_count=1, demand_ns=now_ns, charged_ns=beside(passed_ns))
        state, _ = decide(state, {A: first, B: other}, now_ns)
        was_phantom |= state.accounts[A].is_phantom
    return state.accounts[A], was_phantom


def test_demand_of_a_container_whose_first_kernel_is_charged_while_it_runs_is_believed() -> None:
    account, was_phantom = _first_kernel(lambda passed_ns: passed_ns // (20 * MS) * 20 * MS, lambda _: 0)
    assert not was_phantom
    assert account.strict_until_ns == 0
    assert account.credit_ns == pytest.approx(-2.7 * SECOND, abs=0.2 * SECOND)  # three seconds less a tenth of them


def test_demand_of_a_container_that_is_charged_nothing_for_seconds_is_not_believed() -> None:
    _, was_phantom = _first_kernel(
        lambda passed_ns: UNKNOWN_NS if passed_ns else 0, lambda passed_ns: passed_ns * 9 // 10
    )
    assert was_phantom


def test_short_kernels_beside_four_first_kernels_are_charged_the_time_that_they_had() -> None:
    # The device divides its time among five containers, and the kernels of B take five times as long as they would alone.
    first = [AllocationId(f"first{i}") for i in range(4)]
    state, seconds = SharedDevice(), 4
    for passed_ns in range(0, seconds * SECOND, STEP_NS):
        now_ns = BEGIN_NS + passed_ns
        common = {"waiting_count": 1, "demand_ns": now_ns}
        told_ns = passed_ns // (20 * MS) * 4 * MS
        running = _demand(10, charged_ns=told_ns, kernel_ns=told_ns, unmeasured_ns=told_ns, **common)
        short = _demand(60, charged_ns=passed_ns // (5 * MS) * 5 * MS, kernel_ns=5 * MS, inflight_ns=5 * MS, **common)
        state, _ = decide(state, {B: short, **dict.fromkeys(first, running)}, now_ns)
    assert state.accounts[B].credit_ns == pytest.approx(0.4 * seconds * SECOND, rel=0.05)
    assert sum(account.credit_ns for account in state.accounts.values()) == pytest.approx(0, abs=10)


_CHARGES = st.lists(st.tuples(st.integers(0, 50 * MS), st.booleans()), min_size=1, max_size=5)


@given(excess_ns=st.integers(0, 20 * MS), charges=_CHARGES)
def test_time_given_back_is_no_more_than_the_excess_and_no_more_than_the_charge(
    excess_ns: int, charges: list[tuple[int, bool]]
) -> None:
    charged_ns = {AllocationId(str(i)): ns for i, (ns, _) in enumerate(charges)}
    demands = {AllocationId(str(i)): _demand(10, unmeasured_ns=int(first)) for i, (_, first) in enumerate(charges)}
    back_ns = overcharged_time(excess_ns, charged_ns, demands)
    assert sum(back_ns.values()) <= excess_ns
    assert all(0 <= ns <= charged_ns[name] for name, ns in back_ns.items())
    assert not any(demands[name].unmeasured_ns for name in back_ns)


def test_container_that_is_owed_most_has_a_time_window_where_no_container_has_earned_one() -> None:
    demand = _demand(50, waiting_count=1, demand_ns=BEGIN_NS, kernel_ns=100 * MS)
    accounts = {
        name: Account(credit_ns=credit_ns, settled_ns=BEGIN_NS, watched_ns=0)
        for name, credit_ns in ((A, MS), (B, 2 * MS))
    }
    state = SharedDevice(active=frozenset({A, B}), accounts=accounts, accounted_ns=BEGIN_NS)
    _, decision = decide(state, {A: demand, B: demand}, BEGIN_NS + 1)
    lengths = {
        name: order.window.end_ns - order.window.start_ns
        for name, order in decision.orders.items()
        if order.window is not None
    }
    assert lengths == {A: 0, B: 100 * MS}


_CREDITS = st.integers(-LAG_NS_MAX // 10, LAG_NS_MAX // 10)


@given(
    owed_ns=st.tuples(_CREDITS, _CREDITS),
    percent=st.integers(1, 99),
    used_ns=st.tuples(st.integers(0, 50 * MS), st.integers(0, 50 * MS)),
    unused_ns=st.tuples(st.integers(0, 50 * MS), st.integers(0, 50 * MS)),
    back=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    elapsed_ns=st.integers(1, 50 * MS),
)
def test_sum_owed_on_a_device_that_is_given_out_whole_stays_zero(
    *,
    owed_ns: tuple[int, int],
    percent: int,
    used_ns: tuple[int, int],
    unused_ns: tuple[int, int],
    back: tuple[float, float],
    elapsed_ns: int,
) -> None:
    before = {name: Account(credit_ns=ns) for name, ns in zip((A, B), owed_ns, strict=True)}
    demands = {
        A: _demand(percent, charged_ns=used_ns[0], kernel_ns=SECOND),
        B: _demand(100 - percent, charged_ns=used_ns[1], kernel_ns=SECOND),
    }
    accounts = settle(
        before,
        demands,
        {A: percent / 100, B: 1 - percent / 100},
        among=frozenset({A, B}),
        unused_ns=dict(zip((A, B), unused_ns, strict=True)),
        overcharged_ns={name: int(ns * part) for name, ns, part in zip((A, B), used_ns, back, strict=True)},
        elapsed_ns=elapsed_ns,
        now_ns=BEGIN_NS,
    )
    assert sum(account.credit_ns for account in accounts.values()) == pytest.approx(0, abs=2)


def test_container_that_takes_part_in_no_round_is_owed_nothing() -> None:
    before = {A: replace(Account(), settled_ns=BEGIN_NS)}
    accounts = settle(
        before,
        {A: _demand(50)},
        {A: 0.5},
        among=frozenset(),
        unused_ns={},
        overcharged_ns={},
        elapsed_ns=SECOND,
        now_ns=BEGIN_NS + SECOND,
    )
    assert accounts[A].credit_ns == 0
