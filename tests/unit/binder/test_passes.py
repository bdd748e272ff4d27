"""Passes of the scheduler that nobody waits for."""

from __future__ import annotations

import threading

from calabash.binder.passes import Passes


def test_a_thousand_reasons_for_a_pass_are_answered_by_one() -> None:
    made, go_on, begun = [], threading.Event(), threading.Event()

    def one_pass() -> None:
        made.append(threading.current_thread().name)
        begun.set()
        assert go_on.wait(60)

    passes = Passes(one_pass, pause_s=0.0)
    passes.due()
    assert begun.wait(60)
    begun.clear()
    for _ in range(1000):  # all while the first is being made
        passes.due()
    go_on.set()
    assert begun.wait(60)
    passes.stop()
    assert made == ["binder", "binder"]


def test_a_pass_that_fails_is_not_the_last() -> None:
    outcomes = iter([RuntimeError("no"), None])
    second = threading.Event()

    def one_pass() -> None:
        outcome = next(outcomes)
        if outcome is not None:
            passes.due()
            raise outcome
        second.set()

    passes = Passes(one_pass, pause_s=0.0)
    passes.due()
    assert second.wait(60)
    passes.stop()
