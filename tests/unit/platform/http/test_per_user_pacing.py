"""Per-user rate limit of work on the event loop: the work of one user does not delay another user."""

from __future__ import annotations

import asyncio

from calabash.platform.http.per_user_pacing import PerUserPacer

CROWD, HONEST = 1001, 1002


async def _quiet(pacer: PerUserPacer, done: list[int], number: int) -> None:
    async with asyncio.timeout(60):
        while len(done) < number:
            await pacer.wait(HONEST)
            await asyncio.sleep(0.001)


def test_a_crowd_of_one_user_is_worked_on_a_few_at_a_time() -> None:
    async def scene() -> int:
        pacer, done = PerUserPacer(at_once=3, period_s=0.001), list[int]()
        for number in range(100):
            pacer.begin(CROWD, lambda number=number: done.append(number))  # type: ignore[misc]
        at_first = len(done)
        await _quiet(pacer, done, 100)
        assert done == list(range(100)), "each user's work stays in its order"
        return at_first

    assert asyncio.run(scene()) == 3


def test_another_user_does_not_wait_for_a_crowd() -> None:
    async def scene() -> list[int]:
        pacer, order = PerUserPacer(at_once=3, period_s=60.0), list[int]()
        for _ in range(1000):
            pacer.begin(CROWD, lambda: order.append(CROWD))
        pacer.begin(HONEST, lambda: order.append(HONEST))
        return order

    assert asyncio.run(scene()) == [CROWD, CROWD, CROWD, HONEST]


def test_cancelled_wait_does_not_delay_other_requests() -> None:
    async def scene() -> int:
        pacer, done = PerUserPacer(at_once=1, period_s=0.001), list[int]()
        pacer.begin(CROWD, lambda: done.append(0))
        waiting = asyncio.ensure_future(pacer.wait(CROWD))
        await asyncio.sleep(0)
        waiting.cancel()
        pacer.begin(CROWD, lambda: done.append(1))
        await _quiet(pacer, done, 2)
        return len(done)

    assert asyncio.run(scene()) == 2


def test_what_reads_goes_before_a_crowd_of_the_same_user_and_holds_it_up_never_for_good() -> None:
    async def scene() -> list[str]:
        pacer, order = PerUserPacer(at_once=3, period_s=0.001), list[str]()
        for _ in range(100):
            pacer.begin(CROWD, lambda: order.append("change"))
        for _ in range(10):
            pacer.begin(CROWD, lambda: order.append("read"), reads=True)
        async with asyncio.timeout(60):
            while len(order) < 110:
                await asyncio.sleep(0.001)
        return order

    order = asyncio.run(scene())
    assert order[:9] == ["change"] * 3 + ["read", "read", "change"] * 2
    assert order.index("read") == 3
    assert len(order) - order[::-1].index("read") <= 3 + 15, "the last of them after five periods"
