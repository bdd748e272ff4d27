"""Passes of the scheduler that nobody waits for."""

from __future__ import annotations

import threading
import time

from calabash.binder.local.passes import Passes


def test_a_thousand_requests_for_a_pass_are_served_by_one() -> None:
    made, go_on, begun = [], threading.Event(), threading.Event()

    def one_pass() -> None:
        made.append(threading.current_thread().name)
        begun.set()
        assert go_on.wait(60)

    passes = Passes(one_pass, pause_s=0.0)
    passes.request()
    assert begun.wait(60)
    begun.clear()
    for _ in range(1000):  # all while the first is being made
        passes.request()
    go_on.set()
    assert begun.wait(60)
    passes.stop()
    assert made == ["binder", "binder"]


def test_failed_pass_is_followed_by_others() -> None:
    outcomes = iter([RuntimeError("no"), None])
    second = threading.Event()

    def one_pass() -> None:
        outcome = next(outcomes)
        if outcome is not None:
            passes.request()
            raise outcome
        second.set()

    passes = Passes(one_pass, pause_s=0.0)
    passes.request()
    assert second.wait(60)
    passes.stop()


def test_pass_is_made_at_the_earliest_requested_time() -> None:
    made = threading.Event()
    passes, began_s = Passes(made.set, pause_s=0.0), time.monotonic()
    for wait_s in (3600.0, 0.2, 1800.0):
        passes.request_in(wait_s)
    assert made.wait(60)
    passes.stop()
    assert time.monotonic() >= began_s + 0.2


def test_stopped_passes_make_none_that_was_requested_for_later() -> None:
    made: list[str] = []
    passes = Passes(lambda: made.append("pass"), pause_s=0.0)
    passes.request_in(3600.0)
    thread = passes._thread
    assert thread is not None
    passes.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert made == []
