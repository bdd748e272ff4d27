"""Stream changes to clients as server-sent events (``GET /v1/watch``).

Theory of operation. Each watcher has one open request to the pool. The pool answers it when an object has changed that
the watcher may see. The gateway forwards the reply, and only then sends the next request. Nothing is buffered for a
client that reads slowly: it gets the changes later. If the pool no longer has the changes that it missed, the client
gets a ``reset`` event and must read all objects again. A client that does not read at all is disconnected. After a
broken connection the client continues with ``Last-Event-ID``. If the token is revoked, the stream ends at the next
request to the pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

import msgspec

from calabash.adapters.pool.streams import PoolStreams
from calabash.api.changes import LIST_CHANGES, ChangeList
from calabash.api.gateway import GatewayLimits
from calabash.gateway.api.pool_api import PoolOfVisitor
from calabash.gateway.api.principals import Principals
from calabash.gateway.serving.request_guard import Receive, Send, forwarded_for, while_connected
from calabash.model.errors import CalabashError, Reason

WAIT_S = 15.0  # interval of keep-alive comments
RETRY_MS = 2000
_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class Watchers:
    """Watchers of one gateway.

    A user can have at most ``watchers_per_user`` watchers, and the gateway at most ``watchers`` (both are settings).
    When the gateway has all of its watchers, a new one replaces the oldest watcher of the user that has the most, so
    that each user can have some.
    """

    def __init__(self, pool: PoolStreams, principals: Principals, limits: GatewayLimits) -> None:
        self._pool, self._principals, self._limits = pool, principals, limits
        self._watchers: dict[str, dict[asyncio.Event, None]] = {}  # user -> events that end its watchers, oldest first

    async def serve(self, scope: Any, receive: Receive, send: Send, token: str, headers: Mapping[str, str]) -> None:
        """Serve the ASGI request of one watcher until it disconnects.

        Raises CalabashError only before the reply has started.
        """
        user = await self._principals.user_of(token, origin=forwarded_for(scope))
        self._make_room(user)
        end = asyncio.Event()
        self._watchers.setdefault(user, {})[end] = None
        try:
            await while_connected(scope, receive, self._watch(scope, send, token, headers, end))
        finally:
            self._leave(user, end)

    def _make_room(self, user: str) -> None:
        limits, own = self._limits, len(self._watchers.get(user, ()))
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
                f"this user has {own} watch connections, the limit is {most}",
                reason=Reason.USER_LIMIT,
                hint="close other pages, or poll the list instead of watching",
            )

    def _leave(self, user: str, end: asyncio.Event) -> None:
        own = self._watchers.get(user, {})
        own.pop(end, None)
        if not own:
            self._watchers.pop(user, None)

    async def _watch(self, scope: Any, send: Send, token: str, headers: Mapping[str, str], end: asyncio.Event) -> None:
        pool = PoolOfVisitor(self._pool, token, origin=forwarded_for(scope))
        said = headers.get("last-event-id", "")
        number = int(said) if said.isascii() and said.isdigit() and len(said) < 18 else -1
        found = await pool.get(LIST_CHANGES, query={"after": str(number)})
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        sending = asyncio.ensure_future(_send_changes(pool, send, _kinds(scope), found))
        ending = asyncio.ensure_future(end.wait())
        try:
            await asyncio.wait({sending, ending}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            sending.cancel()
            ending.cancel()
        await send({"type": "http.response.body", "body": b""})  # the client reconnects and gets the error


async def _send_changes(pool: PoolOfVisitor, send: Send, kinds: set[str], found: ChangeList) -> None:
    """Send changes until the pool refuses the token or does not answer."""
    await send(_part(f"retry: {RETRY_MS}\nid: {found.next}\n\n"))
    while True:
        await send(_part(_events(found, kinds)))
        try:
            found = await pool.get(LIST_CHANGES, query={"after": str(found.next), "wait_s": f"{WAIT_S:g}"})
        except CalabashError:
            return


def _kinds(scope: Any) -> set[str]:
    asked = parse_qs(scope.get("query_string", b"").decode("latin-1"))
    return {kind for value in asked.get("kinds", []) for kind in value.split(",") if kind}


def _events(found: ChangeList, kinds: set[str]) -> str:
    events = [f"id: {found.next}\nevent: reset\ndata: {{}}\n\n"] if found.reset else []
    for item in found.items:
        if not kinds or item.kind in kinds:
            data = msgspec.json.encode({"kind": item.kind, "name": item.name, "change": item.change}).decode()
            events.append(f"id: {item.id}\nevent: change\ndata: {data}\n\n")
    return "".join(events) or ": nothing new\n\n"


def _part(text: str) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text.encode(), "more_body": True}
