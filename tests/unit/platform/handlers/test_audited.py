"""A request that made a change is answered with success even if its audit line cannot be written."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from calabash.model.errors import CalabashError, Reason
from calabash.platform.handlers.audit_middleware import audited
from calabash.platform.http.server import _SCOPE_KEY as SCOPE_KEY

FULL = (OSError(28, "No space left on device"), CalabashError("the disk is full", reason=Reason.DISK_FULL))


class Trail:
    """Audit trail that accepts every line, and whose writing does not succeed."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.lines: list[Any] = []

    def add(self, line: Any, *, bounded: bool) -> Future[None]:
        self.lines.append((line, bounded))
        done: Future[None] = Future()
        done.set_exception(self.error)
        return done


@pytest.mark.parametrize("error", FULL, ids=lambda error: type(error).__name__)
def test_a_line_that_cannot_be_written_takes_no_answer_away(error: Exception) -> None:
    trail, sent = Trail(error), []
    connection = SimpleNamespace(caller=None, token_required=False)
    scope = {
        "type": "http",
        "method": "PUT",
        "path": "/v1/tenants/vision",
        "headers": [],
        "state": {SCOPE_KEY: connection},
    }

    async def change(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def keep(message: Any) -> None:
        sent.append(message["type"])

    async def ask() -> None:
        trailing: Any = trail
        await audited(trailing, change)(scope, asyncio.Queue().get, keep)

    asyncio.run(ask())
    assert sent == ["http.response.start", "http.response.body"]
    assert [line.target for line, _ in trail.lines] == ["/v1/tenants/vision"]
