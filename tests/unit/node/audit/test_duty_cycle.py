"""Duty cycle of a program that ignores its suspension: it gets its share and no more."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.node.audit.compare import Throttle, throttle
from calabash.node.audit.duty_cycle import FORGIVEN_NS, KEPT_DEBT_NS, PERIOD_NS, Pace, due_ns, pace
from calabash.node.slots.clamped_counters import MS

WINDOW_NS = 100 * MS
LATE_NS = 100 * MS  # between what ran and that the driver tells it


def _had(
    share: float, cost: Callable[[int], float], *, seconds: int, free_until_ns: int = 0, seen: bool = True
) -> tuple[float, list[int]]:
    """Return the fraction of the time that a program used, which costs ``cost`` for each ns it runs, and when it ran."""
    state, now_ns, used_ns, told_ns = Pace(was_admitted=True, free_until_ns=free_until_ns), MS, 0.0, 0.0
    history: list[float] = []
    runs: list[int] = []
    while now_ns < seconds * 1000 * MS:
        seen_ns = None
        if now_ns % WINDOW_NS == 0 and len(history) > LATE_NS // MS and seen:
            seen_ns = int(history[-LATE_NS // MS] - told_ns)
            told_ns += seen_ns
        if seen_ns is not None or now_ns >= due_ns(state):
            state = pace(state, share=share, seen_ns=seen_ns, suspended=True, now_ns=now_ns)
        if state.runs(now_ns):
            used_ns += cost(now_ns) * MS
            runs.append(now_ns)
        history.append(used_ns)
        now_ns += MS
    return used_ns / now_ns, runs


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("cost", [0.5, 0.9, 2.0, 10.0])
def test_program_gets_its_share_over_seconds_at_any_cost_of_running(share: float, cost: float) -> None:
    had, _ = _had(share, lambda _now: cost, seconds=20)
    most = min(share, cost)
    assert most - 0.05 <= had <= share + 0.02


def test_excess_of_a_program_with_rising_cost_is_repaid() -> None:
    had, _ = _had(0.2, lambda now_ns: 1.0 if now_ns < 5_000 * MS else 8.0, seconds=15)
    assert had <= 0.22


def test_program_runs_in_short_pieces() -> None:
    _, runs = _had(0.2, lambda _now: 1.0, seconds=5)
    pieces = [b - a for a, b in itertools.pairwise(runs)]
    assert max(pieces) < 3 * PERIOD_NS
    longest = current = 1
    for step in pieces:
        current = current + 1 if step == MS else 1
        longest = max(longest, current)
    assert longest <= 0.3 * PERIOD_NS / MS


def test_program_is_stopped_at_first_until_the_arbiter_admits_it() -> None:
    state = Pace()
    for tick in range(100):
        state = pace(state, share=0.5, seen_ns=0, suspended=True, now_ns=(1 + tick) * 20 * MS)
        assert not state.runs(state.at_ns)
    state = pace(state, share=0.5, seen_ns=None, suspended=False, now_ns=2_020 * MS)
    assert state.runs(state.at_ns)
    assert state.debt_ns <= FORGIVEN_NS


def test_debt_reported_by_the_driver_stops_the_program_until_it_is_repaid() -> None:
    state = pace(Pace(was_admitted=True), share=0.2, seen_ns=None, suspended=True, now_ns=MS)
    state = pace(state, share=0.2, seen_ns=KEPT_DEBT_NS + 1_000 * MS, suspended=True, now_ns=200 * MS)
    stopped = 0
    now_ns = 200 * MS
    while not state.runs(now_ns):
        now_ns = max(now_ns + MS, due_ns(state))
        state = pace(state, share=0.2, seen_ns=None, suspended=True, now_ns=now_ns)
        stopped += 1
        assert stopped < 1000
    assert now_ns >= 3_500 * MS  # a second's worth at a fifth takes five; the last of it is paid while it runs
    assert now_ns <= 12_000 * MS
    assert stopped < 200


@given(st.lists(st.tuples(st.integers(1, 300), st.one_of(st.none(), st.integers(0, 1000)), st.booleans()), max_size=60))
def test_next_step_is_in_the_future_and_no_piece_exceeds_a_period(
    steps: list[tuple[int, int | None, bool]],
) -> None:
    state, now_ns = Pace(), 0
    for elapsed, seen, suspended in steps:
        now_ns += elapsed * MS
        seen_ns = None if seen is None else seen * MS
        state = pace(state, share=0.3, seen_ns=seen_ns, suspended=suspended, now_ns=now_ns)
        assert due_ns(state) > now_ns
        assert state.free_until_ns <= now_ns + PERIOD_NS


def test_program_that_keeps_under_reporting_stays_throttled() -> None:
    state, now_ns = Throttle(ignored_ns=MS), MS
    for _ in range(600):
        now_ns += 100 * MS
        state = throttle(
            state,
            suspended=True,
            seen_ratio=0.2,
            now_ns=now_ns,
            share=0.2,
            seen_ns=20 * MS,
            under_reports=now_ns < 30_000 * MS,
        )
        if now_ns < 30_000 * MS:
            assert state.pace is not None
    now_ns += 60_000 * MS
    assert throttle(state, suspended=False, seen_ratio=None, now_ns=now_ns).pace is None
