"""Comparison of reported and seen GPU time: what is charged to a tenant that under-reports, and what is not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from calabash.node.audit.compare import SLACK_NS, Audit, Throttle, Window, check, throttle
from calabash.node.slots.clamped_counters import BACKLOG_NS, MS, ClampedCounter

WINDOW_NS = 250 * MS


def _audited(pairs: list[tuple[int, int]]) -> tuple[Audit, list[int]]:
    audit, owed = Audit(), []
    for i, (seen_ns, told_ns) in enumerate(pairs, 1):
        window = Window(now_ns=i * WINDOW_NS, elapsed_ns=WINDOW_NS, seen_ns=seen_ns, told_ns=told_ns)
        audit, found_ns = check(audit, window)
        owed.append(found_ns)
    return audit, owed


def test_lag_between_charge_and_driver_is_not_charged() -> None:
    lags = [(0, 100 * MS), (100 * MS, 100 * MS), (225 * MS, 100 * MS), (75 * MS, 100 * MS)] * 50
    _, owed = _audited(lags)
    assert not any(owed)


def test_permanent_rounding_up_of_percents_is_not_charged() -> None:
    _, owed = _audited([(76 * MS, 75 * MS)] * 10_000)
    assert not any(owed)


def test_program_that_reports_nothing_is_charged_all_that_was_seen() -> None:
    audit, owed = _audited([(200 * MS, 0)] * 20)
    assert sum(owed) + audit.excess_ns >= 0.97 * 20 * 200 * MS
    assert sum(owed) <= 20 * 200 * MS
    assert owed[0] == 0  # not yet beyond doubt
    assert all(found > 0 for found in owed[1:])


def test_program_that_reports_correctly_again_gets_the_large_slack_again() -> None:
    _, owed = _audited([(200 * MS, 0)] * 4 + [(200 * MS, 200 * MS)] * 40)
    assert not any(owed[5:])


def test_over_reporting_in_advance_gains_little() -> None:
    _, owed = _audited([(0, 250 * MS)] * 100 + [(200 * MS, 0)] * 20)
    assert sum(owed) > 20 * 200 * MS - 700 * MS


@given(st.lists(st.tuples(st.integers(0, 250), st.integers(0, 400)), max_size=80))
def test_charge_never_exceeds_what_the_driver_saw(pairs: list[tuple[int, int]]) -> None:
    _, owed = _audited([(seen * MS, told * MS) for seen, told in pairs])
    assert sum(owed) <= sum(seen for seen, _ in pairs) * MS
    assert all(found == 0 or found > 50 * MS for found in owed)
    assert all(found <= SLACK_NS + 250 * MS for found in owed)


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 500)), max_size=60))
def test_clamped_counter_neither_decreases_nor_exceeds_the_clock(steps: list[tuple[int, int]]) -> None:
    believed, now_ns, last_ns = ClampedCounter(), 0, 0
    for raw_ns, pause in steps:
        now_ns += pause * MS
        value_ns = believed.read(raw_ns, now_ns, burst_ns=40 * MS)
        assert last_ns <= value_ns <= now_ns + 40 * MS
        last_ns = value_ns


def test_plausible_counter_is_not_clamped() -> None:
    believed, raw_ns = ClampedCounter(), 777
    for tick in range(1000):
        raw_ns += tick * 1000
        assert believed.read(raw_ns, tick * 3 * MS, burst_ns=40 * MS) <= raw_ns
    assert believed.read(raw_ns, 4000 * MS, burst_ns=40 * MS) == raw_ns - 777 - 0


def test_jump_of_a_counter_counts_for_a_second_and_lower_values_after_it_for_nothing() -> None:
    believed = ClampedCounter()
    believed.read(0, 0, burst_ns=40 * MS)
    value_ns = 0
    for second in range(1, 20):
        value_ns = believed.read(1 << 60, second * 1000 * MS, burst_ns=40 * MS)
    assert value_ns == BACKLOG_NS


def test_program_that_runs_though_suspended_is_stopped_until_the_suspension_ends() -> None:
    state = Throttle()
    for tick in range(40):
        seen = 0.5 if tick % 5 == 4 else None
        state = throttle(state, suspended=True, seen_ratio=seen, now_ns=(1 + tick) * 50 * MS)
    assert state.frozen
    state = throttle(state, suspended=False, seen_ratio=None, now_ns=3_000 * MS)
    assert not state.frozen
    again = throttle(state, suspended=True, seen_ratio=None, now_ns=3_500 * MS)
    assert again.frozen  # it is known by now


def test_program_that_obeys_its_suspension_is_never_stopped() -> None:
    state = Throttle()
    for tick in range(200):
        seen = (0.5 if tick < 8 else 0.0) if tick % 5 == 4 else None  # what it had before shows in one window more
        state = throttle(state, suspended=True, seen_ratio=seen, now_ns=(1 + tick) * 50 * MS)
        assert not state.frozen
