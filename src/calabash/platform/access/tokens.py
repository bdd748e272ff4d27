"""Tokens: what a request that comes without a process of this machine proves its user with.

Theory of operation. A secret is ``cal_ID_RANDOM`` with 256 random bits, said once, to whoever asked for it. Kept is its
SHA-256 digest only; 256 random bits cannot be guessed from it, so no slower hash is needed. All tokens are in memory, so a
revoked one is refused from the next request on. A login code is a token that is used up by its first use.

A session of the console has no secret at all: it cannot be shown as a token. The gateway names it beside its own credential,
after the browser has proved that it holds the key of the session (``calabash.gateway.sessions.store``).
Sessions of the console,
login codes and the gateway's credential are kept in memory only, so none of them outlives the pool's process: another user
may have had the console's port, and whatever browsers sent there, in the meantime.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from dataclasses import dataclass, replace

from calabash.adapters.clock import Clock
from calabash.adapters.store.tenancy import TokenTable
from calabash.model.errors import CalabashError, Reason
from calabash.model.tenancy import TokenKind, TokenRecord, TokenScope

PREFIX = "cal"
LIFE_S = {TokenKind.SESSION: 12 * 3600.0, TokenKind.LOGIN: 600.0, TokenKind.API: 90 * 86_400.0}
LIFE_S_MAX = 366 * 86_400.0
PER_USER_MAX = 100
KEPT_S = 30 * 86_400.0  # how long one that has expired is still listed
SECRET_CHARACTERS_MAX = 128
_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedSecret:
    """A token and its ``secret``, which is never known again; it is left out where the object is printed."""

    record: TokenRecord
    secret: str

    def __repr__(self) -> str:
        return f"IssuedSecret({self.record.id})"


class Tokens:
    """All tokens of the pool. Safe for threads."""

    def __init__(self, stored: TokenTable, clock: Clock) -> None:
        self._stored = stored
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens = {token.id: token for token in stored.everything()}
        self._forgotten_s = 0.0

    def issue(
        self,
        *,
        user: str,
        kind: TokenKind = TokenKind.API,
        life_s: float = 0.0,
        scopes: tuple[TokenScope, ...] = (),
        note: str = "",
    ) -> IssuedSecret:
        """A new one. Raises USER_LIMIT when that user has too many API tokens; sessions and codes replace the oldest."""
        now_s = self._clock.now_s()
        life_s = min(life_s or LIFE_S[kind], LIFE_S_MAX if kind is TokenKind.API else LIFE_S[kind])
        issued = _new(user=user, kind=kind, now_s=now_s, expires_at=now_s + life_s, scopes=scopes, note=note)
        with self._lock:
            self._forget(now_s)
            self._make_room(user, kind, now_s)
            if not _volatile(issued.record):
                self._stored.put(issued.record)
            self._tokens[issued.record.id] = issued.record
        return issued

    def begin_session(self, user: str) -> IssuedSecret:
        """Return a new session of the console: a record without a secret, kept in memory only. The oldest makes room."""
        now_s = self._clock.now_s()
        kind = TokenKind.SESSION
        made = _new(user=user, kind=kind, now_s=now_s, expires_at=now_s + LIFE_S[kind], scopes=(), note="")
        record = replace(made.record, digest="")
        with self._lock:
            self._forget(now_s)
            self._make_room(user, kind, now_s)
            self._tokens[record.id] = record
        return IssuedSecret(record=record, secret="")

    def session(self, name: str) -> TokenRecord:
        """Return the session of the console that the gateway names. Raises NOT_AUTHENTICATED if there is none."""
        record = self._tokens.get(name)
        if record is None or record.kind is not TokenKind.SESSION or record.digest or not record.valid(self.now_s()):
            raise CalabashError(
                "the session is not known, or it has expired or was ended",
                reason=Reason.NOT_AUTHENTICATED,
                hint="log in again: `calabash login-link` prints a link",
            )
        return record

    def gateway(self) -> IssuedSecret:
        """The credential of the process that serves the network; it lives as long as this pool and is stored nowhere."""
        issued = _new(
            user="gateway",
            kind=TokenKind.GATEWAY,
            now_s=self._clock.now_s(),
            expires_at=float("inf"),
            scopes=(),
            note="",
        )
        with self._lock:
            self._tokens[issued.record.id] = issued.record
        return issued

    def check(self, secret: str) -> TokenRecord:
        """The token of a secret. Raises NOT_AUTHENTICATED when there is none, or none any more."""
        prefix, _, rest = secret[:SECRET_CHARACTERS_MAX].partition("_")
        record = self._tokens.get(rest.partition("_")[0]) if prefix == PREFIX else None
        digest = _digest(secret)
        # A comparison that takes as long whether or not there is such a token, and however much of it is right.
        same = hmac.compare_digest(digest, record.digest if record else "0" * len(digest))
        if record is None or not same or not record.valid(self._clock.now_s()):
            raise CalabashError(
                "the token is not known, or it has expired or was revoked",
                reason=Reason.NOT_AUTHENTICATED,
                hint="make a new one with `calabash token create`",
            )
        return record

    def use_up(self, secret: str) -> TokenRecord:
        """The record of a login code, which nobody can use again. Raises NOT_AUTHENTICATED."""
        record = self.check(secret)
        if record.kind is not TokenKind.LOGIN or not self.revoke(record.id):
            raise CalabashError(
                "this is no login code that can still be used",
                reason=Reason.NOT_AUTHENTICATED,
                hint="ask for another one with `calabash token create --login`",
            )
        return record

    def revoke(self, token: str) -> bool:
        """From now on nobody comes in with it; False when that was so already."""
        with self._lock:
            return self._revoke(token, self._clock.now_s())

    def forget_user(self, user: str) -> None:
        """The user is gone, with all its tokens."""
        with self._lock:
            self._tokens = {i: t for i, t in self._tokens.items() if t.user != user}

    def find(self, token: str) -> TokenRecord | None:
        """One, valid or not."""
        return self._tokens.get(token)

    def now_s(self) -> float:
        """The time that tokens are judged by."""
        return self._clock.now_s()

    def everybody(self) -> list[TokenRecord]:
        """All that are kept, oldest first, but the gateway's."""
        found = [t for t in list(self._tokens.values()) if t.kind is not TokenKind.GATEWAY]
        return sorted(found, key=lambda t: (t.created_at, t.id))

    def _revoke(self, token: str, now_s: float) -> bool:
        record = self._tokens.get(token)
        if record is None or record.revoked_at:
            return False
        if not _volatile(record) and not self._stored.revoke(token, at=now_s):
            return False
        self._tokens[token] = replace(record, revoked_at=now_s)
        return True

    def _make_room(self, user: str, kind: TokenKind, now_s: float) -> None:
        there = [t for t in self._tokens.values() if t.user == user and t.kind is kind and t.valid(now_s)]
        if len(there) < PER_USER_MAX:
            return
        if kind is TokenKind.API:
            raise CalabashError(
                f"user {user} has {len(there)} tokens, the most that one can have",
                reason=Reason.USER_LIMIT,
                hint="revoke some with `calabash token revoke`",
            )
        self._revoke(min(there, key=lambda t: t.created_at).id, now_s)

    def _forget(self, now_s: float) -> None:
        if now_s - self._forgotten_s < 3600.0:
            return
        self._forgotten_s = now_s
        self._stored.forget(before_s=now_s - KEPT_S)
        self._tokens = {i: t for i, t in self._tokens.items() if t.expires_at >= now_s - KEPT_S}


def _volatile(record: TokenRecord) -> bool:
    """Return True for a token that is kept in memory only and ends with the pool's process."""
    return record.kind in {TokenKind.GATEWAY, TokenKind.LOGIN} or not record.digest


def _new(
    *, user: str, kind: TokenKind, now_s: float, expires_at: float, scopes: tuple[TokenScope, ...], note: str
) -> IssuedSecret:
    name = "".join(secrets.choice(_ALPHABET) for _ in range(10))
    secret = f"{PREFIX}_{name}_{secrets.token_urlsafe(32)}"
    record = TokenRecord(
        id=name,
        user=user,
        kind=kind,
        digest=_digest(secret),
        created_at=now_s,
        expires_at=expires_at,
        scopes=scopes,
        note=note,
    )
    return IssuedSecret(record=record, secret=secret)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()
