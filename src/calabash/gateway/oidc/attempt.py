"""One attempt to log in, from the button to the return from the provider, bound to one tab of a browser.

Theory of operation. The page that begins an attempt gets a ticket and keeps it in the storage of its tab, which no other
origin reads or sets. The ticket is a random number, when it was made, and the page to go to, under a MAC of this gateway.
State, nonce and the PKCE verifier are MACs of the random number, each under a name of its own, so the gateway stores nothing,
and a restart of it loses no attempt. A state is accepted with the ticket that it was made from: an answer of the provider that
was meant for another browser is worth nothing. An attempt is used once and lasts ten minutes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass

from calabash.model.errors import CalabashError, Reason

LIFE_S = 600.0
USED_MAX = 10_000
NEXT_CHARACTERS_MAX = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginAttempt:
    """What belongs to it; ``to`` is the page to go to afterwards."""

    seed: str
    begun_s: int
    to: str
    state: str
    nonce: str
    verifier: str

    @property
    def challenge(self) -> str:
        """What the provider is told of the verifier, by S256."""
        return _text(hashlib.sha256(self.verifier.encode()).digest())


class Attempts:
    """Makes attempts and takes them back; ``key`` is the gateway's own secret."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._used: OrderedDict[str, None] = OrderedDict()

    def begin(self, *, to: str, now_s: float) -> LoginAttempt:
        """A new one."""
        return self._of(secrets.token_urlsafe(24), int(now_s), to if len(to) <= NEXT_CHARACTERS_MAX else "/")

    def ticket(self, attempt: LoginAttempt) -> str:
        """Return what the page keeps of the attempt."""
        value = f"{attempt.seed}.{attempt.begun_s}.{_text(attempt.to.encode())}"
        return f"{value}.{self._mac('ticket', value)}"

    def take(self, ticket: str, state: str, *, now_s: float) -> LoginAttempt:
        """Return the attempt that a ticket and a state belong to, once. Raises NOT_AUTHENTICATED."""
        value, _, mac = ticket.rpartition(".")
        parts = value.split(".")
        if len(parts) != 3 or not _same(self._mac("ticket", value), mac):
            raise _refused("this browser has not begun to log in here")
        attempt = self._of(parts[0], int(parts[1]), base64.urlsafe_b64decode(parts[2] + "==").decode())
        if not _same(attempt.state, state):
            raise _refused("the answer belongs to another attempt to log in")
        if not 0 <= now_s - attempt.begun_s <= LIFE_S:
            raise _refused(f"the attempt to log in is older than {LIFE_S / 60:g} minutes")
        if attempt.seed in self._used:
            raise _refused("this attempt to log in has been used")
        self._used[attempt.seed] = None
        while len(self._used) > USED_MAX:
            self._used.popitem(last=False)
        return attempt

    def _of(self, seed: str, begun_s: int, to: str) -> LoginAttempt:
        state, nonce, verifier = (self._mac(name, seed) for name in ("state", "nonce", "verifier"))
        return LoginAttempt(seed=seed, begun_s=begun_s, to=to, state=state, nonce=nonce, verifier=verifier)

    def _mac(self, name: str, value: str) -> str:
        return _text(hmac.new(self._key, f"{name} {value}".encode(), hashlib.sha256).digest())


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode("utf-8", "replace"))


def _refused(message: str) -> CalabashError:
    return CalabashError(message, reason=Reason.NOT_AUTHENTICATED, hint="log in again")
