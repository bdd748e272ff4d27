"""Tests of commands for several objects: one request for each, concurrently."""

from __future__ import annotations

import copy
import threading
from collections import Counter
from typing import Any

import click
import pytest
from click.testing import CliRunner

from calabash.adapters.pool.client import ApiClient
from calabash.cli.pool import view
from calabash.cli.several import AT_ONCE, for_each
from calabash.model.errors import CalabashError, Reason


class _Pool(ApiClient):
    """Pool that answers releases only when ``together`` of them have arrived."""

    def __init__(self, together: int) -> None:
        self.asked: Counter[str] = Counter()
        self._all_there = threading.Barrier(together, timeout=60)

    def call(self, method: str, path: str, body: Any = None, **_: Any) -> Any:
        assert method == "DELETE"
        self.asked[path] += 1
        self._all_there.wait()


def test_sixty_four_releases_are_in_flight_together_and_are_told_in_the_order_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"a{number}" for number in range(AT_ONCE)]
    pool = _Pool(AT_ONCE)
    monkeypatch.setattr(view, "client", lambda: pool)
    done = CliRunner().invoke(copy.copy(view.release), names)  # a command caches its help option
    assert done.exit_code == 0, done.exception
    assert done.stdout.split() == names
    assert pool.asked == {f"/v1/allocations/{name}?force=1": 1 for name in names}


def test_more_objects_than_may_be_in_flight_are_all_acted_on_once() -> None:
    asked, most, lock, now = Counter[str](), [0], threading.Lock(), [0]

    def act(name: str) -> None:
        with lock:
            asked[name] += 1
            now[0] += 1
            most[0] = max(most[0], now[0])
        with lock:
            now[0] -= 1

    names = [str(number) for number in range(3 * AT_ONCE)]
    done = CliRunner().invoke(click.command()(lambda: for_each([*names, *names], act, done="done")))
    assert done.stdout.split() == names
    assert asked == dict.fromkeys(names, 1)
    assert most[0] <= AT_ONCE


def _failing(*messages: str) -> pytest.ExceptionInfo[CalabashError]:
    def act(name: str) -> None:
        if name != "good":
            raise CalabashError(name, reason=Reason.NOT_FOUND, hint=f"see {name}")

    with pytest.raises(CalabashError) as raised:
        for_each(["good", *messages], act, done="released")
    return raised


def test_a_failure_keeps_no_other_object_from_being_acted_on(capsys: pytest.CaptureFixture[str]) -> None:
    error = _failing("no a1", "no a2").value
    assert capsys.readouterr().out == "good\n"
    assert error.message == "2 of 3 are not released: no a1; no a2"
    assert (error.reason, error.hint) == (Reason.NOT_FOUND, "see no a1")


def test_one_failure_is_told_as_it_is() -> None:
    assert _failing("no a1").value.message == "no a1"


def test_many_failures_are_named_up_to_five() -> None:
    message = _failing(*(f"no a{number}" for number in range(9))).value.message
    assert message == "9 of 10 are not released: no a0; no a1; no a2; no a3; no a4; and 4 more"
