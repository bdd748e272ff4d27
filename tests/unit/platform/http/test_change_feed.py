"""Change feed: each change is delivered once, in order, to the watchers that may read it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from calabash.platform.http import change_feed as module
from calabash.platform.http.change_feed import KEPT_MAX, ChangeFeed, Key, Trace


class Pool:
    """Objects with marks, and the number of reads; each ``put`` advances the clock."""

    def __init__(self) -> None:
        self.things: dict[Key, Trace] = {}
        self.reads = 0
        self.now_s = 0.0

    def read(self) -> dict[Key, Trace]:
        self.reads += 1
        return dict(self.things)

    def put(self, name: str, mark: object, *, tenant: str = "") -> None:
        self.things["allocations", name] = Trace(mark=mark, tenant=tenant)
        self.now_s += module.POLL_S

    def changes(self) -> ChangeFeed:
        return ChangeFeed(self.read, first=100, clock=lambda: self.now_s)


def _everything(kind: str, trace: Trace) -> bool:
    return True


def _run(test: Callable[[Pool, ChangeFeed], Awaitable[None]]) -> None:
    async def main() -> None:
        pool = Pool()
        await test(pool, pool.changes())

    asyncio.run(main())


def test_what_was_there_before_is_not_told_and_what_changes_is_told_once_in_order() -> None:
    async def test(pool: Pool, changes: ChangeFeed) -> None:
        pool.put("old", "running")
        begun = await changes.after(-1, wait_s=0, visible=_everything)
        pool.put("old", "ended")
        pool.put("new", "pending")
        told = await changes.after(begun.next, wait_s=0, visible=_everything)
        assert [(c.name, c.change) for c in told.items] == [("old", "changed"), ("new", "added")]
        del pool.things["allocations", "old"]
        pool.now_s += module.POLL_S
        more = await changes.after(told.next, wait_s=0, visible=_everything)
        assert [(c.name, c.change) for c in more.items] == [("old", "removed")]
        assert (await changes.after(more.next, wait_s=0, visible=_everything)).items == []

    _run(test)


def test_nobody_hears_of_what_it_may_not_see_and_does_not_hear_it_later_either() -> None:
    async def test(pool: Pool, changes: ChangeFeed) -> None:
        begun = await changes.after(-1, wait_s=0, visible=_everything)
        pool.put("secret", "running", tenant="red")
        pool.put("mine", "running", tenant="blue")

        def blue(kind: str, trace: Trace) -> bool:
            return trace.tenant == "blue"

        told = await changes.after(begun.next, wait_s=0, visible=blue)
        assert [c.name for c in told.items] == ["mine"]
        assert (await changes.after(told.next, wait_s=0, visible=blue)).items == []

    _run(test)


def test_the_pool_is_looked_at_once_for_all_who_ask_at_the_same_time() -> None:
    async def test(pool: Pool, changes: ChangeFeed) -> None:
        await changes.after(-1, wait_s=0, visible=_everything)
        pool.put("new", "running")
        before = pool.reads
        told = await asyncio.gather(*(changes.after(100, wait_s=0, visible=_everything) for _ in range(20)))
        assert pool.reads == before + 1
        assert {t.next for t in told} == {101}

    _run(test)


def test_who_waits_is_told_when_something_happens() -> None:
    async def test(pool: Pool, changes: ChangeFeed) -> None:
        begun = await changes.after(-1, wait_s=0, visible=_everything)
        waiting = asyncio.ensure_future(changes.after(begun.next, wait_s=1e6, visible=_everything))
        await asyncio.sleep(0)
        pool.put("new", "running")
        assert [c.name for c in (await waiting).items] == ["new"]

    _run(test)


def test_watcher_that_is_too_far_behind_or_of_an_earlier_pool_reads_everything_again() -> None:
    async def test(pool: Pool, changes: ChangeFeed) -> None:
        begun = await changes.after(-1, wait_s=0, visible=_everything)
        for number in range(KEPT_MAX + 1):
            pool.things["allocations", f"a{number}"] = Trace(mark=1)
        pool.now_s += module.POLL_S
        told = await changes.after(begun.next, wait_s=0, visible=_everything)
        assert (told.reset, told.items, told.next) == (True, [], 100 + KEPT_MAX + 1)
        for foreign in (5, told.next + 1):
            assert (await changes.after(foreign, wait_s=0, visible=_everything)).reset

    _run(test)
