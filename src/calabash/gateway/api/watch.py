"""``GET /v1/watch``: what changes, as server-sent events.

Theory of operation. Each watcher has one question open to the pool, which answers when something changed that this watcher
may see; the next is asked when the answer has been sent. So nothing is kept here for those who read slowly: they are behind,
are told to read everything again when they are too far behind, and are hung up on when they do not read at all.
``Last-Event-ID`` continues where a connection broke off. A token that is revoked ends the stream at the next question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

import msgspec

from calabash.api.changes import ChangeList
from calabash.gateway.api.pool_api import PoolOfVisitor
from calabash.gateway.serving.request_guard import Receive, Send, forwarded_for, while_connected
from calabash.gateway.settings import Gateway
from calabash.model.errors import CalabashError, Reason

PATH = "/v1/watch"
WAIT_S = 15.0  # how often a watcher hears that the gateway is still there
RETRY_MS = 2000
_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class Watchers:
    """All watchers of one gateway.

    One user has at most ``watchers_per_user``. Where there are ``watchers`` already, the oldest one of the user with the most
    ends for the next, so each user finds room.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._watchers: dict[str, dict[asyncio.Event, None]] = {}  # user -> what ends each of them, the oldest first

    async def serve(self, scope: Any, receive: Receive, send: Send, token: str, headers: Mapping[str, str]) -> None:
        """Serve one watcher until it goes. Raises CalabashError before anything is sent, else ends the stream."""
        user = await self._gateway.principals.user_of(token, origin=forwarded_for(scope))
        self._make_room(user)
        end = asyncio.Event()
        self._watchers.setdefault(user, {})[end] = None
        try:
            await while_connected(scope, receive, self._watch(scope, send, token, headers, end))
        finally:
            self._leave(user, end)

    def _make_room(self, user: str) -> None:
        limits, own = self._gateway.settings.limits, len(self._watchers.get(user, ()))
        most = min(limits.watchers_per_user, limits.watchers)
        if own < most and sum(map(len, self._watchers.values())) >= limits.watchers:
            largest = max(self._watchers, key=lambda one: len(self._watchers[one]))
            if len(self._watchers[largest]) > own:
                oldest = next(iter(self._watchers[largest]))
                oldest.set()
                self._leave(largest, oldest)
                return
            most = own
        if own >= most:
            raise CalabashError(
                f"{own} connections of this user watch already, and {most} may now",
                reason=Reason.USER_LIMIT,
                hint="close other pages, or read the list again from time to time instead of watching",
            )

    def _leave(self, user: str, end: asyncio.Event) -> None:
        own = self._watchers.get(user, {})
        own.pop(end, None)
        if not own:
            self._watchers.pop(user, None)

    async def _watch(self, scope: Any, send: Send, token: str, headers: Mapping[str, str], end: asyncio.Event) -> None:
        pool = PoolOfVisitor(self._gateway.pool, token, origin=forwarded_for(scope))
        said = headers.get("last-event-id", "")
        number = int(said) if said.isascii() and said.isdigit() and len(said) < 18 else -1
        found = await pool.get(f"/v1/changes?after={number}", ChangeList)
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        telling = asyncio.ensure_future(_tell(pool, send, _kinds(scope), found))
        ending = asyncio.ensure_future(end.wait())
        try:
            await asyncio.wait({telling, ending}, return_when=asyncio.FIRST_COMPLETED)
            if telling.done():
                telling.result()
        finally:
            telling.cancel()
            ending.cancel()
        await send({"type": "http.response.body", "body": b""})  # the client comes again, and hears why


async def _tell(pool: PoolOfVisitor, send: Send, kinds: set[str], found: ChangeList) -> None:
    """Send what changed until the pool refuses the token."""
    await send(_part(f"retry: {RETRY_MS}\nid: {found.next}\n\n"))
    while True:
        await send(_part(_told(found, kinds)))
        try:
            found = await pool.get(f"/v1/changes?after={found.next}&wait_s={WAIT_S:g}", ChangeList)
        except CalabashError:
            return


def _kinds(scope: Any) -> set[str]:
    asked = parse_qs(scope.get("query_string", b"").decode("latin-1"))
    return {kind for value in asked.get("kinds", []) for kind in value.split(",") if kind}


def _told(found: ChangeList, kinds: set[str]) -> str:
    events = [f"id: {found.next}\nevent: reset\ndata: {{}}\n\n"] if found.reset else []
    for item in found.items:
        if not kinds or item.kind in kinds:
            data = msgspec.json.encode({"kind": item.kind, "name": item.name, "change": item.change}).decode()
            events.append(f"id: {item.id}\nevent: change\ndata: {data}\n\n")
    return "".join(events) or ": nothing new\n\n"


def _part(text: str) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text.encode(), "more_body": True}
