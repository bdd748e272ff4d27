"""SteadyClock: its time does not jump when the calendar of the system is set."""

from __future__ import annotations

import pytest

from calabash.adapters.clock import SteadyClock
from calabash_testing.clock import VirtualClock


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_steady_clock_does_not_follow_a_calendar_that_is_set(jump_s: float) -> None:
    host = VirtualClock()
    clock = SteadyClock(host)
    began_s = clock.now_s()
    assert began_s == host.now_s()
    host.advance(10)
    host.set_calendar(jump_s)
    host.advance(5)
    assert clock.now_s() == pytest.approx(began_s + 15)
    assert host.now_s() == pytest.approx(began_s + 15 + jump_s)
    assert clock.monotonic_ns() == host.monotonic_ns()
    assert clock.ahead_s() == pytest.approx(jump_s)
    assert SteadyClock(host, clock.start).now_s() == pytest.approx(began_s + 15)
