"""Verify the proof of requests that name a session, and sign the replies to them."""

from __future__ import annotations

from typing import Any

from calabash.api.gateway import SESSION_HEADER
from calabash.gateway.serving.rate_limits import Buckets
from calabash.gateway.serving.request_guard import (
    SESSION_SCOPE,
    Application,
    Message,
    Receive,
    Send,
    body_of,
    headers_of,
    refuse,
    too_many,
    with_body,
)
from calabash.gateway.sessions.store import (
    CLOCK_HEADER,
    LOCATION_HEADER,
    PROOF_HEADER,
    ProvenReply,
    ProvenSession,
    Question,
    Sessions,
)
from calabash.model.errors import CalabashError, Reason


def session_of(scope: Any) -> str:
    """Return the session ID of a request; "" for a request without a proved session."""
    proven: ProvenSession | None = scope.get(SESSION_SCOPE)
    return proven.id if proven else ""


class SessionGate:
    """ASGI middleware for pages: verifies the session of each request, and refuses requests with an invalid proof.

    Args:
        application: gets requests without a session ID, and requests whose proof is valid.
        sessions: verifies proofs.
        rate: rate limit of requests for each session.
    """

    def __init__(self, application: Application, sessions: Sessions, rate: Buckets) -> None:
        self._application, self._sessions, self._rate = application, sessions, rate

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        if SESSION_HEADER not in headers:
            await self._application(scope, receive, send)
            return
        body = await body_of(receive)
        question = Question(method=scope["method"], host=headers.get("host", ""), target=target_of(scope), body=body)
        proven = self._sessions.proven(headers, question, scheme=scope["scheme"])
        if proven is None:
            await self._unproven(send)
            return
        scope[SESSION_SCOPE] = proven
        signed = _Signed(send, proven)
        wait_s = self._rate.take(f"session {proven.id}")
        if wait_s:
            await too_many(signed.send, wait_s)
            return
        await self._application(scope, with_body(receive, body), signed.send)

    async def _unproven(self, send: Send) -> None:
        error = CalabashError(
            "the request belongs to no session of this console",
            reason=Reason.NOT_AUTHENTICATED,
            hint="log in again: `calabash login --link` prints a link",
        )
        await refuse(send, 401, error, (CLOCK_HEADER.encode(), self._sessions.clock().encode()))


class _Signed:
    """Buffers a reply until it is complete, and sends it with its proof."""

    def __init__(self, send: Send, proven: ProvenSession) -> None:
        self._send = send
        self._proven = proven
        self._start: Message = {}
        self._content = bytearray()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        self._content += message.get("body", b"")
        if message.get("more_body", False):
            return
        content = bytes(self._content)
        named = {name.lower(): value.decode("latin-1") for name, value in self._start["headers"]}
        proof = self._proven.proof(
            ProvenReply(
                status=self._start["status"],
                kind=named.get(b"content-type", ""),
                location=named.get(LOCATION_HEADER.encode(), ""),
                content=content,
            )
        )
        headers = [*self._start["headers"], (PROOF_HEADER.encode(), proof.encode())]
        await self._send({**self._start, "headers": headers})
        await self._send({"type": "http.response.body", "body": content})


def target_of(scope: Any) -> str:
    """Return path and query of a request as they were received."""
    path = scope.get("raw_path", b"").decode("latin-1").partition("?")[0]
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{path}?{query}" if query else path
