"""``GET /v1/watch``: what changes, as server-sent events.

Theory of operation. Each watcher has one question open to the pool, which answers when something changed that this watcher
may see; the next is asked when the answer has been sent. So nothing is kept here for those who read slowly: they are behind,
are told to read everything again when they are too far behind, and are hung up on when they do not read at all.
``Last-Event-ID`` continues where a connection broke off. A token that is revoked ends the stream at the next question.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

import msgspec

from calabash.api.changes import ChangeList
from calabash.model.errors import CalabashError, Reason
from calabash.server.asking import PoolOfVisitor
from calabash.server.guard import Receive, Send, forwarded_for
from calabash.server.settings import Gateway

PATH = "/v1/watch"
WAIT_S = 15.0  # how often a watcher hears that the gateway is still there
PER_TOKEN_MAX = 32
RETRY_MS = 2000
_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class Watchers:
    """All watchers of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._watchers: Counter[str] = Counter()

    async def serve(self, scope: Any, receive: Receive, send: Send, token: str, headers: Mapping[str, str]) -> None:
        """One watcher, until it goes. Raises CalabashError before anything is sent, else ends the stream."""
        full = self._watchers.total() >= self._gateway.settings.limits.watchers
        if full or self._watchers[token] >= PER_TOKEN_MAX:
            raise CalabashError("too many watch already", reason=Reason.USER_LIMIT, hint="close other pages, or poll")
        self._watchers[token] += 1
        try:
            gone = asyncio.ensure_future(_gone(receive))
            telling = asyncio.ensure_future(self._tell(scope, send, token, headers))
            try:
                await asyncio.wait({gone, telling}, return_when=asyncio.FIRST_COMPLETED)
                if telling.done():
                    telling.result()
            finally:
                gone.cancel()
                telling.cancel()
        finally:
            self._watchers[token] -= 1
            self._watchers += Counter()  # those at zero are forgotten

    async def _tell(self, scope: Any, send: Send, token: str, headers: Mapping[str, str]) -> None:
        pool = PoolOfVisitor(self._gateway.pool, token, origin=forwarded_for(scope))
        asked = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        kinds = {kind for value in asked.get("kinds", []) for kind in value.split(",") if kind}
        said = headers.get("last-event-id", "")
        number = int(said) if said.isascii() and said.isdigit() and len(said) < 18 else -1
        found = await pool.get(f"/v1/changes?after={number}", ChangeList)
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await send(_part(f"retry: {RETRY_MS}\nid: {found.next}\n\n"))
        while True:
            await send(_part(_told(found, kinds)))
            try:
                found = await pool.get(f"/v1/changes?after={found.next}&wait_s={WAIT_S:g}", ChangeList)
            except CalabashError:
                await send({"type": "http.response.body", "body": b""})  # it comes again and hears why
                return


def _told(found: ChangeList, kinds: set[str]) -> str:
    events = [f"id: {found.next}\nevent: reset\ndata: {{}}\n\n"] if found.reset else []
    for item in found.items:
        if not kinds or item.kind in kinds:
            data = msgspec.json.encode({"kind": item.kind, "name": item.name, "change": item.change}).decode()
            events.append(f"id: {item.id}\nevent: change\ndata: {data}\n\n")
    return "".join(events) or ": nothing new\n\n"


def _part(text: str) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text.encode(), "more_body": True}


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
