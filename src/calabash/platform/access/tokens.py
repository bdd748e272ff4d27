"""Tokens: the credentials of requests that do not come from a process of this machine.

Theory of operation. The secret of a token is ``cal_ID_RANDOM`` with 256 random bits. It is returned once, to the user
who created the token. Only its SHA-256 digest is stored. A slow hash, as for passwords, is not needed, because 256
random bits cannot be found by trying. All tokens are in memory, so a revoked token is refused from the next request on.
A login code is a token that can be used once.

A session of the console has no secret at all: it cannot be shown as a token. The gateway sends the ID of the session
together with its own credential, after the browser has proved that it holds the key of the session
(``calabash.gateway.sessions.store``). Sessions of the console, login codes and the gateway's credential are kept in
memory only, so they end with the pool's process. While the pool does not run, another user may listen on the console's
port and receive the requests of browsers. The sessions in these requests must not be valid when the pool runs again.
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
KEPT_S = 30 * 86_400.0  # seconds for which an expired token is still listed
SECRET_CHARACTERS_MAX = 128
_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedSecret:
    """A new token and its ``secret``, which cannot be read again later. ``repr`` leaves the secret out."""

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
        """Issue a token and store it.

        Args:
            user: user of the token.
            kind: kind of the token.
            life_s: seconds until it expires; 0 for the default of its kind. Longer lives are shortened to the maximum.
            scopes: scopes that limit the permissions of the token.
            note: note of the user.

        Raises USER_LIMIT if the user has PER_USER_MAX API tokens already. A new session or login code revokes the
        oldest one if the user has PER_USER_MAX of them.
        """
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
        """Return a new session of the console: a record without a secret, kept in memory only.

        Revokes the user's oldest session if there are PER_USER_MAX.
        """
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
        """Return the session of the console with this ID, which the gateway sends in a request header.

        Raises NOT_AUTHENTICATED if there is no such session, or if it has expired or was revoked.
        """
        record = self._tokens.get(name)
        if record is None or record.kind is not TokenKind.SESSION or record.digest or not record.valid(self.now_s()):
            raise CalabashError(
                "the session is not known, or it has expired or was ended",
                reason=Reason.NOT_AUTHENTICATED,
                hint="log in again: `calabash login --link` prints a link",
            )
        return record

    def gateway(self) -> IssuedSecret:
        """Create the credential of the gateway process. It is not stored, so it ends with the pool's process."""
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
        """Return the token of a secret. Raises NOT_AUTHENTICATED if it is unknown, expired or revoked."""
        prefix, _, rest = secret[:SECRET_CHARACTERS_MAX].partition("_")
        record = self._tokens.get(rest.partition("_")[0]) if prefix == PREFIX else None
        digest = _digest(secret)
        # Constant-time comparison, also for an unknown token ID.
        same = hmac.compare_digest(digest, record.digest if record else "0" * len(digest))
        if record is None or not same or not record.valid(self._clock.now_s()):
            raise CalabashError(
                "the token is not known, or it has expired or was revoked",
                reason=Reason.NOT_AUTHENTICATED,
                hint="make a new one with `calabash user token create`",
            )
        return record

    def use_up(self, secret: str) -> TokenRecord:
        """Check a login code, revoke it so that it cannot be used again, and return its record. Raises NOT_AUTHENTICATED."""
        record = self.check(secret)
        if record.kind is not TokenKind.LOGIN or not self.revoke(record.id):
            raise CalabashError(
                "the login code is unknown, expired or was used before",
                reason=Reason.NOT_AUTHENTICATED,
                hint="ask for another one with `calabash user token create --link`",
            )
        return record

    def revoke(self, token: str) -> bool:
        """Revoke a token. Return False if there is none or it was revoked before."""
        with self._lock:
            return self._revoke(token, self._clock.now_s())

    def forget_user(self, user: str) -> None:
        """Drop all tokens of a deleted user from memory."""
        with self._lock:
            self._tokens = {i: t for i, t in self._tokens.items() if t.user != user}

    def find(self, token: str) -> TokenRecord | None:
        """Return the record of a token, valid or not; None if there is none."""
        return self._tokens.get(token)

    def now_s(self) -> float:
        """Return the present time, by the clock with which the expiry of tokens is checked."""
        return self._clock.now_s()

    def everybody(self) -> list[TokenRecord]:
        """Return the tokens of all users, oldest first, without the credential of the gateway."""
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
                hint="revoke some with `calabash user token revoke`",
            )
        self._revoke(min(there, key=lambda t: t.created_at).id, now_s)

    def _forget(self, now_s: float) -> None:
        if now_s - self._forgotten_s < 3600.0:
            return
        self._forgotten_s = now_s
        self._stored.delete_expired(before_s=now_s - KEPT_S)
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
