"""Limits of the requests of one user."""

from __future__ import annotations

import asyncio

import pytest

from calabash.platform.home.limits import Limits
from calabash.platform.http.request_limits import UserRequestLimits

ANN, EVE = 1, 2


def fairness(now: list[float], **limits: int) -> UserRequestLimits:
    return UserRequestLimits(Limits(**limits), exempt=lambda uid: uid == 0, clock=lambda: now[0])


def test_connections_are_counted_per_user() -> None:
    fair = fairness([0.0], connections=2)
    assert [fair.connect(EVE) for _ in range(3)] == [True, True, False]
    assert fair.connect(ANN)
    fair.disconnect(EVE)
    assert fair.connect(EVE)


def test_who_comes_too_fast_waits_for_its_own_tokens_only() -> None:
    now = [0.0]
    fair = fairness(now, requests_per_second=10, requests_at_once=2)
    assert [fair.delay_s(EVE) for _ in range(4)] == pytest.approx([0.0, 0.0, 0.1, 0.2])
    assert fair.delay_s(ANN) == 0.0
    assert fair.delay_s(0) == 0.0
    now[0] = 10.0
    assert fair.delay_s(EVE) == 0.0, "the tokens have come back"


def test_who_hangs_up_while_it_waits_for_its_token_gives_it_back() -> None:
    fair = fairness([0.0], requests_per_second=1, requests_at_once=1)
    assert asyncio.run(fair.admit(EVE, hung_up=lambda: False))
    assert not asyncio.run(fair.admit(EVE, hung_up=lambda: True))
    assert fair.delay_s(EVE) == pytest.approx(1.0), "as if it had not asked"


def test_question_does_not_wait_for_calls_of_the_same_user_that_change_something() -> None:
    async def scene() -> bool:
        fair, hold = fairness([0.0]), asyncio.Event()

        async def change() -> None:
            async with fair.work(EVE):
                await hold.wait()

        crowd = [asyncio.ensure_future(change()) for _ in range(200)]
        await asyncio.sleep(0)
        async with asyncio.timeout(60), fair.work(EVE, reads=True):
            waiting = sum(not task.done() for task in crowd)
        hold.set()
        await asyncio.gather(*crowd)
        return waiting == 200

    assert asyncio.run(scene())
