"""ASGI middleware that answers the requests that are cancelled when the server shuts down."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from calabash.api import replies
from calabash.model.errors import Reason
from calabash.platform.http.server import Application, Message, Receive, Send

_FAILURE = replies.Failure(
    reason=str(Reason.POOL_DOWN),
    message="the pool is shutting down",
    hint="repeat the request when it is up: calabash up",
)


def answer_when_cut_off(application: Application) -> Application:
    """Wrap an application so that a request that is cancelled before its reply began gets status 503 and a failure."""

    async def ask(scope: Any, receive: Receive, send: Send) -> None:
        begun = scope["type"] != "http"

        async def answer(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await application(scope, receive, answer)
        except asyncio.CancelledError:
            if begun:
                raise
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": msgspec.json.encode(_FAILURE)})

    return ask
