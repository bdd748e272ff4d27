"""Session of the web console without a browser: logs in and signs its requests as the console's pages do."""

from __future__ import annotations

import base64
import http.client
import json
import re
import secrets
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlencode

from calabash.api.gateway import SESSION_HEADER
from calabash.gateway.sessions.store import (
    CLOCK_HEADER,
    LOCATION_HEADER,
    PROOF_HEADER,
    ProvenReply,
    ProvenSession,
    Question,
    request_proof,
)

WAIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply of the gateway; names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    content: bytes


def http_ask(
    address: tuple[str, int],
    method: str,
    path: str,
    body: bytes | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    headers: dict[str, str] | None = None,
) -> Reply:
    """Return the reply to one request on a connection of its own."""
    made = (
        http.client.HTTPSConnection(*address, timeout=WAIT_S, context=tls)
        if tls
        else http.client.HTTPConnection(*address, timeout=WAIT_S)
    )
    try:
        made.request(method, path, body, headers or {})
        answer = made.getresponse()
        named = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(status=answer.status, headers=named, content=answer.read())
    finally:
        made.close()


def log_in(address: tuple[str, int], code: str, *, tls: ssl.SSLContext | None = None) -> Reply:
    """Return the reply to a login code."""
    body = json.dumps({"code": code}).encode()
    return http_ask(address, "POST", "/login", body, tls=tls, headers={"content-type": "application/json"})


class LoginRefusedError(Exception):
    """The gateway refused a login; ``reply`` is its answer."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(f"the login was answered {reply.status}: {reply.content[:200]!r}")
        self.reply = reply


@dataclass(slots=True, kw_only=True)
class ConsoleSession:
    """A logged-in session; ``sent`` holds the headers of its last request."""

    address: tuple[str, int]
    id: str
    key: bytes
    tls: ssl.SSLContext | None = None
    clock: tuple[str, int] = ("", 0)
    sent: dict[str, str] = field(default_factory=dict)

    @classmethod
    def begun(cls, address: tuple[str, int], code: str, *, tls: ssl.SSLContext | None = None) -> ConsoleSession:
        """Log in by a code. Raises LoginRefusedError, OSError."""
        reply = log_in(address, code, tls=tls)
        if reply.status != 200:
            raise LoginRefusedError(reply)
        assert "set-cookie" not in reply.headers
        begun = json.loads(reply.content)
        made = cls(address=address, id=begun["session"], key=base64.b64decode(begun["key"]), tls=tls)
        shell = http_ask(address, "GET", "/", tls=tls, headers={"accept": "text/html"})
        found = re.search(rb'name="calabash-clock" content="(\S+) (\d+)"', shell.content)
        assert found is not None
        made.hear(f"{found[1].decode()} {found[2].decode()}")
        return made

    def hear(self, clock: str) -> None:
        """Store the start and the time that the gateway reported."""
        start, now_ms = clock.split()
        self.clock = (start, int(now_ms))

    def proved(self, method: str, path: str, body: bytes = b"") -> dict[str, str]:
        """Return the headers of a request of this session, with its proof."""
        nonce = secrets.token_hex(16)
        question = Question(method=method, host=f"{self.address[0]}:{self.address[1]}", target=path, body=body)
        mac = request_proof(self.key, self.clock[0], question, at_ms=self.clock[1], nonce=nonce)
        self.sent = {
            SESSION_HEADER: self.id,
            PROOF_HEADER: f"{self.clock[1]}.{nonce}.{mac}",
            "content-type": "application/x-www-form-urlencoded",
            "accept": "text/html",
        }
        return self.sent

    def ask(self, method: str, path: str, **fields: str) -> Reply:
        """Send a request and return the reply; check the reply's proof. Retries once if the gateway's clock differs."""
        body = urlencode(fields).encode()
        for _ in range(2):
            sent = self.proved(method, path, body)
            reply = http_ask(self.address, method, path, body, tls=self.tls, headers=sent)
            if PROOF_HEADER in reply.headers or CLOCK_HEADER not in reply.headers:
                break
            self.hear(reply.headers[CLOCK_HEADER])
        if PROOF_HEADER in reply.headers:
            proven = ProvenSession(id=self.id, key=self.key, nonce=sent[PROOF_HEADER].split(".")[1])
            answer = ProvenReply(
                status=reply.status,
                kind=reply.headers.get("content-type", ""),
                location=reply.headers.get(LOCATION_HEADER, ""),
                content=reply.content,
            )
            assert reply.headers[PROOF_HEADER] == proven.proof(answer)
        return reply
