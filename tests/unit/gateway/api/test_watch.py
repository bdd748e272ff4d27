"""Tests of the gateway's server-sent events: requests to the pool, sent events, and the end of the stream."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from tests.unit.gateway.standin import TOKEN, GatewayWorld, PoolStandIn, strict

from calabash.adapters.pool.streams import PoolAnswer
from calabash.api.changes import ChangeList, ChangeView


class _Telling(PoolStandIn):
    """Pool that answers with these lists of changes one after another, and then refuses the token as revoked."""

    def __init__(self, *told: ChangeList) -> None:
        super().__init__()
        self.told = list(told)

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        token: str = "",
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        holder: str = "",
    ) -> PoolAnswer:
        if path.startswith("/v1/changes") and token in self.tokens and self.told:
            self.answers[path] = self.told.pop(0)
        elif path.startswith("/v1/changes"):
            self.tokens.clear()
        return await super().ask(method, path, body, token=token, headers=headers, timeout_s=timeout_s, holder=holder)


def _events(world: GatewayWorld, path: str = "/v1/watch", **headers: str) -> tuple[int, list[str]]:
    """Return the status, and the blocks of the stream until it ends."""
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    named = {"host": "localhost", "authorization": f"Bearer {TOKEN}", **headers}
    target, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": "GET",
        "path": target,
        "raw_path": target.encode(),
        "query_string": query.encode(),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()],
        "scheme": "http",
        "client": ("127.0.0.1", 1),
        "state": {},
    }
    asyncio.run(world.application(scope, receive, send))
    text = b"".join(m.get("body", b"") for m in sent[1:]).decode()
    return sent[0]["status"], [block for block in text.split("\n\n") if block]


def _changed(number: int, kind: str, name: str) -> ChangeView:
    return ChangeView(id=number, kind=kind, name=name, change="changed")


def test_changes_are_told_with_their_numbers_until_the_token_is_good_no_more() -> None:
    pool = _Telling(
        ChangeList(items=[], next=7, reset=False),
        ChangeList(items=[_changed(8, "devices", "0"), _changed(9, "queues", "a")], next=9, reset=False),
        ChangeList(items=[], next=9, reset=False),
    )
    status, blocks = _events(GatewayWorld(pool=pool))
    assert status == 200
    assert blocks[0].endswith("id: 7")
    assert blocks[2].split("\n")[:2] == ["id: 8", "event: change"]
    data = msgspec.json.decode(blocks[2].split("data: ")[1])
    assert data == {"kind": "devices", "name": "0", "change": "changed"}
    assert blocks[-1] == ": nothing new"
    assert [a.path for a in pool.asked][1:3] == ["/v1/changes?after=-1", "/v1/changes?after=7&wait_s=15"]
    assert {a.token for a in pool.asked} == {TOKEN}


def test_who_comes_back_continues_after_the_last_event_and_hears_of_its_kinds_only() -> None:
    both = [_changed(8, "devices", "0"), _changed(9, "queues", "a")]
    pool = _Telling(ChangeList(items=both, next=9, reset=False))
    _, blocks = _events(GatewayWorld(pool=pool), "/v1/watch?kinds=queues,other", last_event_id="7")
    assert pool.asked[1].path == "/v1/changes?after=7"
    assert [b.split("\n")[0] for b in blocks if "event: change" in b] == ["id: 9"]


def test_who_is_too_far_behind_is_told_to_read_everything_again() -> None:
    pool = _Telling(ChangeList(items=[], next=50, reset=True))
    _, blocks = _events(GatewayWorld(pool=pool), last_event_id="nonsense")
    assert pool.asked[1].path == "/v1/changes?after=-1"
    assert "id: 50\nevent: reset\ndata: {}" in blocks


def test_nobody_watches_without_a_token_and_no_more_than_may() -> None:
    world = GatewayWorld(pool=_Telling())
    assert world("GET", "/v1/watch").status == 401
    assert world("POST", "/v1/watch", authorization=f"Bearer {TOKEN}").status == 405
    assert _events(world)[0] == 401
    full = strict(watchers=1)
    api = full.application._application._api
    api._watch._watchers["user ann"] = {asyncio.Event(): None}
    assert _events(full)[0] == 429


def test_the_openapi_document_is_there_without_a_token_and_has_every_route() -> None:
    shown = GatewayWorld()("GET", "/v1/openapi.json")
    document = shown.json()
    assert (shown.status, document["openapi"]) == (200, "3.1.0")
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert {"/v1/devices", "/v1/me", "/v1/changes"} <= set(document["paths"])
