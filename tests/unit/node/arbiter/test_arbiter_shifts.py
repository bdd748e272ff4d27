"""Shifts of containers that spill, in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from calabash.model.request import AllocationId
from calabash.node.arbiter.accounts import ComputeDemand
from calabash.node.arbiter.swap_shifts import DRAIN_NS, IDLE_NS, ROUND_NS_MAX, Present, Shift, present
from calabash.node.slots.clamped_counters import MS
from calabash.node.slots.layout import Gate, PagePolicy

A, B, C = AllocationId("a"), AllocationId("b"), AllocationId("c")
GIB = 1 << 30
STEP_NS = 3 * MS
SECOND = 1_000 * MS


def _demand(now_ns: int, *, percent: int = 50, paged_gib: float = 4, inflight_ns: int = 0) -> ComputeDemand:
    return ComputeDemand(
        core_percent=percent,
        policy=PagePolicy.BURST,
        waiting_count=1,
        demand_ns=now_ns,
        paged_bytes=int(paged_gib * GIB),
        inflight_ns=inflight_ns,
    )


def _run(seconds: float, demands: Mapping[AllocationId, ComputeDemand]) -> tuple[dict[str, int], int]:
    """Return the time for which each tenant holds the device, and the number of changes."""
    shift: Shift | None = None
    held: dict[str, int] = {}
    changes, now_ns, last = 0, SECOND, ""
    for _ in range(int(seconds * SECOND) // STEP_NS):
        now_ns += STEP_NS
        shown = present(shift, {n: replace(d, demand_ns=now_ns) for n, d in demands.items()}, now_ns)
        shift = shown.shift
        for name in shown.demands:
            held[name] = held.get(name, 0) + STEP_NS
        holder = shift.holder if shift else ""
        changes, last = changes + (holder != last), holder
    return held, changes


def test_spilling_containers_have_the_device_in_shifts_by_their_shares() -> None:
    held, changes = _run(300, {A: _demand(0, percent=25), B: _demand(0, percent=75)})
    assert held[A] / held[B] == pytest.approx(1 / 3, rel=0.15)
    assert held[A] + held[B] == pytest.approx(300 * SECOND, rel=0.01)
    assert changes < 60, "pages are moved at every change"


def test_shift_is_much_longer_than_paging_and_bounded() -> None:
    small = present(None, {A: _demand(1, paged_gib=0.1), B: _demand(1, paged_gib=0.1)}, 1).shift
    large = present(None, {A: _demand(1, paged_gib=4), B: _demand(1, paged_gib=4)}, 1).shift
    huge = present(None, {A: _demand(1, paged_gib=4000), B: _demand(1, paged_gib=4000)}, 1).shift
    assert small is not None
    assert large is not None
    assert huge is not None
    assert large.until_ns == pytest.approx(40 * small.until_ns, rel=0.1)
    assert large.until_ns > 10 * 4 * GIB / 12
    assert huge.until_ns <= ROUND_NS_MAX


def _aside(shown: Present) -> set[AllocationId]:
    assert all(order.gate is Gate.TURN and order.window is not None for order in shown.aside.values())
    assert all(order.window.end_ns == order.window.start_ns for order in shown.aside.values() if order.window)
    return set(shown.aside)


def test_no_container_is_suspended_for_a_single_spilling_one_or_for_memory_that_fits() -> None:
    demands = {A: _demand(1), B: _demand(1, paged_gib=0), C: replace(_demand(1), demand_ns=0, waiting_count=0)}
    shown = present(None, demands, 1)
    assert (shown.shift, shown.demands, _aside(shown)) == (None, demands, set())


def test_holder_has_the_share_of_all_spilling_containers_and_alternates_with_others() -> None:
    shown = present(None, {A: _demand(1, percent=20), B: _demand(1, percent=30), C: _demand(1, paged_gib=0)}, 1)
    assert set(shown.demands) == {A, C}
    assert (shown.demands[A].core_percent, shown.demands[A].policy) == (50, PagePolicy.BURST)
    assert _aside(shown) == {B}


def test_unused_rest_of_fixed_shares_stays_unused_in_shifts() -> None:
    fixed = {n: replace(_demand(0, percent=30), policy=PagePolicy.FIXED) for n in (A, B)}
    held, _ = _run(120, fixed)
    assert held[A] == pytest.approx(0.3 * 120 * SECOND, rel=0.2)
    assert held[B] == pytest.approx(0.3 * 120 * SECOND, rel=0.2)


def test_holder_without_demand_loses_its_shift() -> None:
    first = present(None, {A: _demand(1), B: _demand(1)}, 1)
    assert first.shift is not None
    assert first.shift.holder == A
    idle = replace(_demand(1), waiting_count=0)
    later = IDLE_NS // 2
    assert present(first.shift, {A: idle, B: _demand(later)}, later).demands.keys() == {A}
    later = 2 * IDLE_NS
    assert present(first.shift, {A: idle, B: _demand(later)}, later).shift is None


def test_work_in_flight_of_the_last_holder_may_finish_within_a_limit() -> None:
    shift = present(None, {A: _demand(1), B: _demand(1)}, 1).shift
    assert shift is not None
    over = shift.until_ns + 1
    busy = {A: _demand(over, inflight_ns=MS), B: _demand(over)}
    changed = present(shift, busy, over)
    assert changed.shift is not None
    assert (changed.shift.holder, _aside(changed)) == (B, {A, B})
    done = present(changed.shift, {A: _demand(over), B: _demand(over)}, over)
    assert _aside(done) == {A}
    late = over + DRAIN_NS
    stuck = present(changed.shift, {A: _demand(late, inflight_ns=MS), B: _demand(late)}, late)
    assert _aside(stuck) == {A}


def _best_effort(now_ns: int, *, percent: int) -> ComputeDemand:
    return replace(_demand(now_ns, percent=percent), policy=PagePolicy.BEST_EFFORT)


def test_best_effort_holder_stays_best_effort() -> None:
    fixed = replace(_demand(1, percent=80, paged_gib=0), policy=PagePolicy.FIXED)
    shown = present(None, {A: _best_effort(1, percent=40), B: _best_effort(1, percent=20), C: fixed}, 1)
    assert (shown.demands[A].core_percent, shown.demands[A].policy) == (60, PagePolicy.BEST_EFFORT)
    assert shown.demands[C] == fixed


def test_best_effort_members_divide_only_the_rest_of_promised_shares() -> None:
    demands = {
        A: replace(_demand(1, percent=50), policy=PagePolicy.FIXED),
        B: _best_effort(1, percent=90),
        C: replace(_demand(1, percent=40, paged_gib=0), policy=PagePolicy.FIXED),
    }
    shown = present(None, demands, 1)
    assert (shown.demands[A].core_percent, shown.demands[A].policy) == (60, PagePolicy.BURST)
    assert shown.shift is not None
    held, _ = _run(120, {A: replace(_demand(0, percent=80), policy=PagePolicy.FIXED), B: _best_effort(0, percent=90)})
    assert held[A] == pytest.approx(0.8 * 120 * SECOND, rel=0.2)
