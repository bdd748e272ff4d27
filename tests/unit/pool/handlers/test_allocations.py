"""The step of a request in which its client becomes the program of its allocation, while the server shuts down."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from calabash.model.errors import CalabashError, Reason
from calabash.pool.handlers import allocations

WAITING: Any = SimpleNamespace(id="a1")
RECORD = object()


class FakePool:
    """A pool whose ``enter`` blocks until the test lets it go on."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.entering = threading.Event()
        self.go_on = threading.Event()
        self.given_back: list[str] = []

    def enter(self, _allocation: str, _process: object) -> object:
        self.entering.set()
        assert self.go_on.wait(10)
        if self.error is not None:
            raise self.error
        return RECORD

    def give_back(self, waiting: Any, *, why: str) -> None:
        assert why
        self.given_back.append(waiting.id)


def _session(before: Callable[[], None] = lambda: None) -> Any:
    async def work(call: Callable[[], None]) -> None:
        def in_thread() -> None:
            before()
            call()

        await asyncio.to_thread(in_thread)

    return SimpleNamespace(work=work, caller=SimpleNamespace(process=None))


async def _cancelled(pool: Any, session: Any, reached: threading.Event) -> Any:
    """Return the result of a request that is cancelled when its thread has reached a point."""
    request = asyncio.ensure_future(allocations._entered(pool, session, WAITING))
    assert await asyncio.to_thread(reached.wait, 10)
    request.cancel()
    threading.Timer(0.05, pool.go_on.set).start()  # the request waits in the event loop
    return await request


def test_client_that_has_become_a_member_keeps_its_allocation_when_the_server_shuts_down() -> None:
    pool = FakePool()
    assert asyncio.run(_cancelled(pool, _session(), pool.entering)) is RECORD
    assert pool.given_back == []


def test_request_that_is_cancelled_before_its_client_became_a_member_ends_its_allocation() -> None:
    pool, reached = FakePool(), threading.Event()

    def before() -> None:
        reached.set()
        assert pool.go_on.wait(10)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(_cancelled(pool, _session(before), reached))
    assert pool.given_back == ["a1"]
    assert not pool.entering.is_set()


@pytest.mark.parametrize("cancel", [False, True])
def test_allocation_ends_if_its_client_cannot_become_a_member(cancel: bool) -> None:
    pool = FakePool(CalabashError("the process has ended", reason=Reason.NOT_FOUND))
    given: Any = pool
    if not cancel:
        pool.go_on.set()
    entered: Any = (
        _cancelled(given, _session(), pool.entering) if cancel else allocations._entered(given, _session(), WAITING)
    )
    with pytest.raises(CalabashError, match="has ended"):
        asyncio.run(entered)
    assert pool.given_back == ["a1"]
