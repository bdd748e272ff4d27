"""What is held against a tenant that tells less GPU time than the driver saw, and what is not."""

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


def test_what_is_charged_before_it_runs_or_seen_after_it_was_told_is_no_lie() -> None:
    lags = [(0, 100 * MS), (100 * MS, 100 * MS), (225 * MS, 100 * MS), (75 * MS, 100 * MS)] * 50
    _, owed = _audited(lags)
    assert not any(owed)


def test_whole_percents_that_round_up_for_ever_are_no_lie() -> None:
    _, owed = _audited([(76 * MS, 75 * MS)] * 10_000)
    assert not any(owed)


def test_who_tells_nothing_owes_all_that_was_seen() -> None:
    audit, owed = _audited([(200 * MS, 0)] * 20)
    assert sum(owed) + audit.excess_ns >= 0.97 * 20 * 200 * MS
    assert sum(owed) <= 20 * 200 * MS
    assert owed[0] == 0  # not yet beyond doubt
    assert all(found > 0 for found in owed[1:])


def test_who_was_caught_is_believed_again_when_it_tells_the_truth() -> None:
    _, owed = _audited([(200 * MS, 0)] * 4 + [(200 * MS, 200 * MS)] * 40)
    assert not any(owed[5:])


def test_telling_too_much_first_buys_little() -> None:
    _, owed = _audited([(0, 250 * MS)] * 100 + [(200 * MS, 0)] * 20)
    assert sum(owed) > 20 * 200 * MS - 700 * MS


@given(st.lists(st.tuples(st.integers(0, 250), st.integers(0, 400)), max_size=80))
def test_nobody_is_ever_charged_more_than_was_seen(pairs: list[tuple[int, int]]) -> None:
    _, owed = _audited([(seen * MS, told * MS) for seen, told in pairs])
    assert sum(owed) <= sum(seen for seen, _ in pairs) * MS
    assert all(found == 0 or found > 50 * MS for found in owed)
    assert all(found <= SLACK_NS + 250 * MS for found in owed)


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 500)), max_size=60))
def test_a_counter_never_runs_backwards_nor_faster_than_the_clock(steps: list[tuple[int, int]]) -> None:
    believed, now_ns, last_ns = ClampedCounter(), 0, 0
    for raw_ns, pause in steps:
        now_ns += pause * MS
        value_ns = believed.read(raw_ns, now_ns, burst_ns=40 * MS)
        assert last_ns <= value_ns <= now_ns + 40 * MS
        last_ns = value_ns


def test_an_honest_counter_is_believed_to_the_nanosecond() -> None:
    believed, raw_ns = ClampedCounter(), 777
    for tick in range(1000):
        raw_ns += tick * 1000
        assert believed.read(raw_ns, tick * 3 * MS, burst_ns=40 * MS) <= raw_ns
    assert believed.read(raw_ns, 4000 * MS, burst_ns=40 * MS) == raw_ns - 777 - 0


def test_a_leap_counts_for_a_second_and_what_follows_below_it_for_nothing() -> None:
    believed = ClampedCounter()
    believed.read(0, 0, burst_ns=40 * MS)
    value_ns = 0
    for second in range(1, 20):
        value_ns = believed.read(1 << 60, second * 1000 * MS, burst_ns=40 * MS)
    assert value_ns == BACKLOG_NS


def test_who_runs_though_suspended_is_stopped_until_the_suspension_ends() -> None:
    state = Throttle()
    for tick in range(40):
        seen = 0.5 if tick % 5 == 4 else None
        state = throttle(state, suspended=True, seen_ratio=seen, now_ns=(1 + tick) * 50 * MS)
    assert state.frozen
    state = throttle(state, suspended=False, seen_ratio=None, now_ns=3_000 * MS)
    assert not state.frozen
    again = throttle(state, suspended=True, seen_ratio=None, now_ns=3_500 * MS)
    assert again.frozen  # it is known by now


def test_who_keeps_to_its_suspension_is_never_stopped() -> None:
    state = Throttle()
    for tick in range(200):
        seen = (0.5 if tick < 8 else 0.0) if tick % 5 == 4 else None  # what it had before shows in one window more
        state = throttle(state, suspended=True, seen_ratio=seen, now_ns=(1 + tick) * 50 * MS)
        assert not state.frozen
