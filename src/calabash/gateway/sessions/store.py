"""Console sessions: each request and reply carries a proof, which is computed with the secret key of the session.

Theory of operation. No cookie or other credential that a browser sends by itself has authority. A login gives the page
a session ID and a key of 256 bits, which the page keeps in the storage of its origin (the port is part of an origin) as
a key that scripts can use but cannot read. The key is never sent again. A request carries the session ID and

    HMAC(key, start, method, host, target, time, nonce, SHA-256 of the body)

and the reply to it HMAC(key, nonce, status, content type, location, SHA-256 of the content). A server that receives
requests of a page, on another port or on the same port after the pool has ended, cannot make requests of its own from
them, and the page shows nothing that such a server replies.

The keys are MACs of the session ID under the gateway's credential, which is new at each start of the pool. They end
with the pool, survive a restart of the gateway, and are not stored. ``start`` is random and new at each start of the
gateway; ``time`` is the gateway's clock as the page last received it, so no two clocks are compared. A request is
accepted for ``VALID_MS``, and only once: nonces are remembered for as long.

A plain-HTTP page that was reached by a name (``localhost``) cannot have a session: another user can listen on the other
address of that name and forward requests. Without TLS, pages are served under the IP address only.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from calabash.api.gateway import SESSION_HEADER
from calabash.gateway.serving.allowed_hosts import host_of, is_address

PROOF_HEADER = "calabash-proof"  # TIME.NONCE.MAC in a request, MAC in a reply
CLOCK_HEADER = "calabash-clock"  # "START TIME", in the reply to a request without a valid proof
LOCATION_HEADER = "calabash-location"  # the page to go to, after a form
VALID_MS = 60_000
AHEAD_MS = 1_000  # a page derives its time from an earlier reply, so it is ahead by rounding at most
NONCES_MAX = 20_000  # of one session; more within VALID_MS are refused
SESSIONS_MAX = 10_000
_ID = re.compile(r"[a-z0-9]{4,40}\Z")
_PROOF = re.compile(r"([0-9]{1,15})\.([0-9a-f]{32})\.([0-9a-f]{64})\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Parts of a request that its proof covers.

    Args:
        method: HTTP method.
        host: Host header.
        target: path and query as received.
        body: request body.
    """

    method: str
    host: str
    target: str
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenReply:
    """Parts of a reply that its proof covers: status, media type, the page to go to, and the content."""

    status: int
    kind: str = ""
    location: str = ""
    content: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenSession:
    """Session of a request whose proof is valid: its ID and key, and the nonce of the request."""

    id: str
    key: bytes
    nonce: str

    def proof(self, answer: ProvenReply) -> str:
        """Return the MAC that proves a reply to this request; it covers the reply and the nonce of the request."""
        parts = ("calabash reply", self.nonce, str(answer.status), answer.kind, answer.location)
        return _mac(self.key, parts, answer.content)


class Sessions:
    """Derives the keys of the sessions of one gateway, and verifies the proofs of requests.

    Args:
        credential: the gateway's own credential, new at each start of the pool.
        clock: monotonic seconds.
    """

    def __init__(self, credential: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._secret = hashlib.sha256(b"calabash session keys " + credential.encode()).digest()
        self._clock = clock
        self._seen: OrderedDict[str, OrderedDict[str, int]] = OrderedDict()  # session -> nonce -> its time
        self.start = secrets.token_urlsafe(16)

    def clock(self) -> str:
        """Return the start ID and the clock in milliseconds, which a page needs to prove a request."""
        return f"{self.start} {self._now_ms()}"

    def key(self, session: str) -> str:
        """Return the key of a session in base64."""
        return base64.b64encode(self._key(session)).decode()

    def proven(self, headers: Mapping[str, str], question: Question, *, scheme: str) -> ProvenSession | None:
        """Return the session of a request; None if its proof is not valid.

        A proof is not valid if its MAC is wrong, or if it is too old, was used before, or was made for an earlier start
        of the gateway. Without TLS, it is also not valid if the request names a host by its name instead of its IP
        address.

        Args:
            headers: headers of the request, with lower-case names.
            question: the parts of the request that the proof covers.
            scheme: ``http`` or ``https``.
        """
        session, shown = headers.get(SESSION_HEADER, ""), _PROOF.match(headers.get(PROOF_HEADER, ""))
        if not _ID.match(session) or shown is None:
            return None
        if scheme != "https" and not is_address(host_of(question.host)):
            return None
        at_ms, nonce, mac = int(shown[1]), shown[2], shown[3]
        key = self._key(session)
        if not hmac.compare_digest(mac, request_proof(key, self.start, question, at_ms=at_ms, nonce=nonce)):
            return None
        if not self._fresh(session, nonce, at_ms):
            return None
        return ProvenSession(id=session, key=key, nonce=nonce)

    def example(self, question: Question) -> dict[str, str]:
        """Return the headers of a request with a valid proof, for a session that the pool does not know.

        Such requests are sent when the process starts, so that all modules are imported.
        """
        session, nonce, now_ms = "example", secrets.token_hex(16), self._now_ms()
        mac = request_proof(self._key(session), self.start, question, at_ms=now_ms, nonce=nonce)
        return {SESSION_HEADER: session, PROOF_HEADER: f"{now_ms}.{nonce}.{mac}"}

    def _key(self, session: str) -> bytes:
        return hmac.digest(self._secret, session.encode(), hashlib.sha256)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _fresh(self, session: str, nonce: str, at_ms: int) -> bool:
        """Record the nonce of a request; return False if it was used before or the request's time is not accepted."""
        oldest = self._now_ms() - VALID_MS
        if not oldest <= at_ms <= self._now_ms() + AHEAD_MS:
            return False
        seen = self._seen.setdefault(session, OrderedDict())
        self._seen.move_to_end(session)
        while seen and next(iter(seen.values())) < oldest - AHEAD_MS:
            seen.popitem(last=False)
        if nonce in seen or len(seen) >= NONCES_MAX:
            return False
        seen[nonce] = self._now_ms()
        if len(self._seen) > SESSIONS_MAX:
            self._drop_idle(oldest - AHEAD_MS)
        return True

    def _drop_idle(self, before_ms: int) -> None:
        """Drop the nonces of sessions without a request since ``before_ms``."""
        for session in [s for s, seen in self._seen.items() if not seen or next(reversed(seen.values())) < before_ms]:
            del self._seen[session]


def request_proof(key: bytes, start: str, question: Question, *, at_ms: int, nonce: str) -> str:
    """Return the proof of a request, computed in the same way as by the script of the page."""
    parts = (
        "calabash request",
        start,
        question.method,
        question.host,
        question.target,
        str(at_ms),
        nonce,
    )
    return _mac(key, parts, question.body)


def _mac(key: bytes, parts: tuple[str, ...], body: bytes) -> str:
    text = "\n".join((*parts, hashlib.sha256(body).hexdigest()))
    return hmac.digest(key, text.encode(errors="replace"), hashlib.sha256).hex()
