"""A request that a shutdown of the server cancels is answered with an error, unless its answer has begun."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from calabash.platform.handlers.application import answer_when_cut_off


async def _cut_off(*, begins: bool, scope: str = "http") -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []
    waits = asyncio.Event()

    async def application(_scope: Any, _receive: Any, send: Any) -> None:
        if begins:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        waits.set()
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    asking = asyncio.ensure_future(answer_when_cut_off(application)({"type": scope}, None, send))
    await waits.wait()
    asking.cancel()
    try:
        await asking
    except asyncio.CancelledError:
        sent.append({"type": "cancelled"})
    return sent


def test_a_request_that_waits_when_its_server_ends_is_answered_with_503_and_a_failure() -> None:
    start, body = asyncio.run(_cut_off(begins=False))
    assert start["status"] == 503
    assert json.loads(body["body"])["reason"] == "pool_down"


@pytest.mark.parametrize(("begins", "scope"), [(True, "http"), (False, "lifespan")])
def test_what_has_begun_or_is_no_request_is_only_cancelled(begins: bool, scope: str) -> None:
    assert asyncio.run(_cut_off(begins=begins, scope=scope))[-1] == {"type": "cancelled"}
