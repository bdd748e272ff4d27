"""Tests of ``calabash run --wait`` repeating its request while the pool cannot take it."""

from __future__ import annotations

from typing import Any

import pytest

from calabash.adapters.pool.client import ApiClient
from calabash.cli.run import become
from calabash.model.errors import CalabashError, Reason


class AwayPool(ApiClient):
    """Pool that refuses requests for the given reasons first, and has an allocation of this process from a lost reply."""

    def __init__(self, *reasons: Reason) -> None:
        self.reasons = list(reasons)
        self.asked: list[float] = []
        self.deleted: list[str] = []

    def call(self, method: str, path: str, body: Any = None, **_: Any) -> Any:
        if method == "POST":
            self.asked.append(body["wait_s"])
            if self.reasons:
                raise CalabashError("the database does not answer", reason=self.reasons.pop(0))
            return {"id": "granted"}
        if method == "DELETE":
            self.deleted.append(path)
        return {"items": [{"id": "lost"}]}


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    made: list[float] = []
    monkeypatch.setattr("calabash.cli.run.become.time.sleep", made.append)
    return made


@pytest.mark.parametrize("reason", [Reason.POOL_DOWN, Reason.STORE_UNAVAILABLE])
def test_request_is_made_again_with_the_time_that_is_left_and_the_reason_said_once(
    capsys: pytest.CaptureFixture[str], reason: Reason
) -> None:
    pool = AwayPool(reason, reason, reason)
    assert become._granted(pool, {"wait_s": 60.0}, quiet=False) == {"id": "granted"}
    assert len(pool.asked) == 4
    assert pool.asked[0] == 60.0
    assert all(50.0 < left_s < 60.0 for left_s in pool.asked[1:])
    assert capsys.readouterr().err == "waiting for the pool: the database does not answer\n"


def test_what_was_granted_while_the_answer_was_lost_is_given_back_before_the_request_is_made_again() -> None:
    pool = AwayPool(Reason.POOL_DOWN)
    become._granted(pool, {"wait_s": 60.0}, quiet=True)
    assert pool.deleted == ["/v1/allocations/lost"]


@pytest.mark.parametrize(("reason", "wait_s"), [(Reason.NOT_PERMITTED, 60.0), (Reason.TIMEOUT, 60.0)])
def test_refusal_that_waiting_does_not_change_is_raised_at_once(reason: Reason, wait_s: float) -> None:
    pool = AwayPool(reason)
    with pytest.raises(CalabashError) as refused:
        become._granted(pool, {"wait_s": wait_s}, quiet=True)
    assert refused.value.reason is reason
    assert len(pool.asked) == 1


def test_pool_that_stays_away_is_an_error_when_the_time_is_over(pauses: list[float]) -> None:
    pool = AwayPool(*[Reason.POOL_DOWN] * 1000)
    with pytest.raises(CalabashError) as refused:
        become._granted(pool, {"wait_s": 0.4}, quiet=True)
    assert refused.value.reason is Reason.POOL_DOWN
    assert pauses == []
