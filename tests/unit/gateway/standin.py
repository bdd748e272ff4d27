"""Gateway with a test double of the pool, called in this process."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import msgspec

from calabash.adapters.pool.streams import PoolAnswer, PoolStreams
from calabash.api.gateway import SESSION_HEADER, ConsoleSettings, GatewayLimits
from calabash.api.replies import Status
from calabash.api.tenancy import IssuedTokenReply, Me
from calabash.gateway.application import gateway_application
from calabash.gateway.oidc.login import OidcLogin
from calabash.gateway.sessions.store import (
    LOCATION_HEADER,
    PROOF_HEADER,
    ProvenReply,
    ProvenSession,
    Question,
    Sessions,
    request_proof,
)

TOKEN = "cal_abcdefghjk_apitoken"
SESSION = "abcdefghjk"  # the id of a session of the console
GATEWAY = "cal_gatewaygat_credential"
CODE = "cal_codecodeco_code"
HOST = "127.0.0.1:7432"
STATUS = {f.name: 0 if f.type in {int, float} else "" for f in msgspec.structs.fields(Status)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Request that the stand-in of the pool received."""

    method: str
    path: str
    token: str
    body: bytes
    session: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Reply of the gateway."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    cookies: tuple[str, ...] = ()

    def json(self) -> Any:
        return msgspec.json.decode(self.content)


class PoolStandIn(PoolStreams):
    """Test double of the pool: it answers by path, and refuses unknown tokens."""

    def __init__(self) -> None:
        super().__init__("/nowhere")
        self.asked: list[Asked] = []
        empty = {"items": [], "next": ""}
        self.answers: dict[str, Any] = {"/v1/queues": {"items": []}, "/v1/allocations": empty, "/v1/status": STATUS}
        self.tokens = {TOKEN, GATEWAY}
        self.sessions = {SESSION}
        self.subjects: set[str] = set()

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
        session = (headers or {}).get(SESSION_HEADER, "")
        self.asked.append(Asked(method=method, path=path, token=token, body=body, session=session))
        if token not in self.tokens or (session and (token != GATEWAY or session not in self.sessions)):
            return _answer(401, {"reason": "not_authenticated", "message": "the token is not known", "hint": ""})
        if (method, path) == ("POST", "/v1/sessions"):
            return self._session(token, msgspec.json.decode(body))
        if path == "/v1/me":
            me = Me(user="ann", uid=-1, token="x", kind="session", scopes=[], own="", roles=[], may=[], tenants=[])
            return _answer(200, me)
        if path in self.answers:
            return _answer(200, self.answers[path])
        return _answer(404, {"reason": "not_found", "message": f"no {path}", "hint": ""})

    def _session(self, token: str, order: Mapping[str, Any]) -> PoolAnswer:
        known = order.get("subject") in self.subjects if token == GATEWAY else False
        if order.get("subject") and not known:
            hint = "ask an administrator"
            return _answer(403, {"reason": "not_permitted", "message": "you have no account here", "hint": hint})
        if not known and order.get("code") != CODE:
            return _answer(401, {"reason": "not_authenticated", "message": "the token is not known", "hint": ""})
        console = order.get("console", False) and token == GATEWAY
        name, secret = (SESSION, "") if console else ("x", TOKEN)
        issued = IssuedTokenReply(id=name, user="ann", kind="session", scopes=[], expires_at=9.0, secret=secret)
        return _answer(201, issued)


def _answer(status: int, content: Any) -> PoolAnswer:
    return PoolAnswer(status=status, content=msgspec.json.encode(content), headers={"content-type": "application/json"})


@dataclass(slots=True)
class GatewayWorld:
    """Gateway with its settings and the test double of its pool."""

    settings: ConsoleSettings = field(default_factory=ConsoleSettings)
    pool: PoolStandIn = field(default_factory=PoolStandIn)
    application: Any = None
    oidc: OidcLogin | None = None
    chunk_bytes: int = 0  # bodies arrive in parts of this size; 0: at once
    sessions: Sessions = field(init=False)

    def __post_init__(self) -> None:
        self.sessions = Sessions(GATEWAY)
        if self.settings.oidc.issuer:
            self.oidc = OidcLogin(self.settings.oidc, credential=GATEWAY)
        self.application = gateway_application(
            self.settings, self.pool, credential=GATEWAY, sessions=self.sessions, oidc=self.oidc
        )

    def proofs(
        self, method: str, path: str, body: bytes = b"", *, session: str = SESSION, host: str = HOST
    ) -> dict[str, str]:
        """Return the headers of a request as a page of that session sends them."""
        key = base64.b64decode(self.sessions.key(session))
        start, now_ms = self.sessions.clock().split()
        nonce = secrets.token_hex(16)
        question = Question(method=method, host=host, target=path, body=body)
        mac = request_proof(key, start, question, at_ms=int(now_ms), nonce=nonce)
        return {SESSION_HEADER: session, PROOF_HEADER: f"{now_ms}.{nonce}.{mac}"}

    def page(self, method: str, path: str, body: bytes = b"", **headers: str) -> Shown:
        """Return the reply to a request of a page that is logged in, after checking that the gateway proved it."""
        proofs = self.proofs(method, path, body, host=headers.get("host", HOST))
        given = {**proofs, "content-type": "application/x-www-form-urlencoded", **headers}
        shown = self(method, path, body, given=given)
        proven = ProvenSession(
            id=SESSION, key=base64.b64decode(self.sessions.key(SESSION)), nonce=proofs[PROOF_HEADER].split(".")[1]
        )
        answer = ProvenReply(
            status=shown.status,
            kind=shown.headers.get("content-type", ""),
            location=shown.headers.get(LOCATION_HEADER, ""),
            content=shown.content,
        )
        assert shown.headers[PROOF_HEADER] == proven.proof(answer)
        return shown

    def __call__(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        address: str = "127.0.0.1",
        scheme: str = "http",
        given: Mapping[str, str] | None = None,
        **headers: str,
    ) -> Shown:
        every = {**(given or {}), **headers}
        named = {"host": HOST, **{name.replace("_", "-"): value for name, value in every.items()}}
        return asyncio.run(self._asked(method, path, body, (address, scheme), named))

    async def _asked(
        self, method: str, target: str, body: bytes, way: tuple[str, str], headers: Mapping[str, str]
    ) -> Shown:
        path, _, query = target.partition("?")
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "scheme": way[1],
            "server": ("127.0.0.1", 7432),
            "client": (way[0], 1),
            "state": {},
        }
        sent: list[Any] = []
        step = self.chunk_bytes or len(body) or 1
        parts = [body[at : at + step] for at in range(0, len(body), step)] or [b""]
        given = [{"type": "http.request", "body": part, "more_body": True} for part in reversed(parts)]
        given[0]["more_body"] = False

        async def receive() -> Any:
            if not given:
                await asyncio.Event().wait()
            return given.pop()

        async def send(message: Any) -> None:
            sent.append(message)

        await self.application(scope, receive, send)
        start = sent[0]
        shown = {name.decode().lower(): value.decode() for name, value in start["headers"]}
        cookies = tuple(value.decode() for name, value in start["headers"] if name.lower() == b"set-cookie")
        content = b"".join(m.get("body", b"") for m in sent[1:])
        return Shown(status=start["status"], headers=shown, content=content, cookies=cookies)


def strict(**bounds: int) -> GatewayWorld:
    """Return a gateway with the given limits."""
    return GatewayWorld(settings=ConsoleSettings(limits=GatewayLimits(**bounds)))
