"""Begin sessions of the console: messages of a login and its exchange with the pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from calabash.adapters.pool.streams import PoolStreams
from calabash.api.endpoints import CREATE_SESSION
from calabash.api.tenancy import IssuedTokenReply, SessionOrder
from calabash.gateway.api.pool_api import decoded
from calabash.gateway.sessions.redirects import Seen
from calabash.gateway.sessions.store import Sessions
from calabash.model.errors import CalabashError, Reason
from calabash.transport.web.application import Response, json_response

Shape = TypeVar("Shape", bound=msgspec.Struct)


class LoginOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Request to exchange a login code for a session."""

    code: Annotated[str, Meta(min_length=1, max_length=128)]


class SessionBegun(msgspec.Struct, kw_only=True, frozen=True):
    """Reply with a new session: its ID, its ``key`` in base64, which is never sent again, and the page to go to."""

    session: str
    key: str
    to: str = "/"


class Logins:
    """Begins sessions of the console.

    Args:
        pool: connections to the pool.
        sessions: derives the keys of sessions.
        credential: the gateway's own credential, with which it may begin sessions.
    """

    def __init__(self, pool: PoolStreams, sessions: Sessions, *, credential: str) -> None:
        self._pool, self._sessions, self._credential = pool, sessions, credential

    async def begin(self, order: SessionOrder, *, origin: Mapping[str, str], to: str = "/") -> Response:
        """Return the reply with the new session. Raises CalabashError with the pool's reason.

        Args:
            order: request for the session, which is forwarded to the pool.
            origin: headers with the address of the client, for the pool's audit log.
            to: page to show after the login.
        """
        body = msgspec.json.encode(order)
        asked = self._pool.ask(CREATE_SESSION.method, CREATE_SESSION.path, body, token=self._credential, headers=origin)
        issued = decoded(await asked, IssuedTokenReply)
        return json_response(SessionBegun(session=issued.id, key=self._sessions.key(issued.id), to=to))


async def decoded_body(request: Seen, shape: type[Shape]) -> Shape:
    """Return the decoded JSON body of a script's request.

    Only JSON is accepted, to prevent cross-site request forgery: a page of another site can send a form without
    permission, but for JSON its browser asks this server first (CORS).

    Raises:
        CalabashError: BAD_REQUEST if the body is not JSON of that form.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/json":
        raise CalabashError(
            f"the request body is {kind[:80] or 'of no type'}, not JSON",
            reason=Reason.BAD_REQUEST,
            hint="reload the page",
        )
    try:
        return msgspec.json.decode(await request.body(), type=shape)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise CalabashError(
            f"the request cannot be decoded: {error}", reason=Reason.BAD_REQUEST, hint="reload the page"
        ) from None
