"""Attempts to log in at the provider, each bound to one browser tab.

Theory of operation. The page that begins an attempt gets a ticket and keeps it in the storage of its tab, which pages
of other origins can neither read nor set. The ticket contains a random number, the time, and the page to show after the
login, and is authenticated by a MAC of this gateway. The values ``state``, ``nonce`` and PKCE verifier of the protocol
are MACs of the random number, each with its own label. The gateway can compute them again from the ticket, so it stores
nothing and a restart loses no attempt. A ``state`` is accepted only together with its ticket. An attacker who obtains a
provider's answer for one browser therefore cannot use it in another. An attempt can be used once, within ten minutes.
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
    """Attempt to log in.

    Args:
        seed: random number of the attempt.
        begun_s: start in seconds since the epoch.
        to: page to show after the login.
        state: value that the provider returns with its answer.
        nonce: value that the ID token must contain.
        verifier: PKCE verifier.
    """

    seed: str
    begun_s: int
    to: str
    state: str
    nonce: str
    verifier: str

    @property
    def challenge(self) -> str:
        """PKCE challenge: the SHA-256 digest of the verifier, which is sent to the provider at the beginning."""
        return _text(hashlib.sha256(self.verifier.encode()).digest())


class Attempts:
    """Creates attempts, and verifies them when the browser returns; ``key`` is a secret of the gateway."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._used: OrderedDict[str, None] = OrderedDict()

    def begin(self, *, to: str, now_s: float) -> LoginAttempt:
        """Return a new attempt; a ``to`` longer than NEXT_CHARACTERS_MAX becomes "/"."""
        return self._attempt(secrets.token_urlsafe(24), int(now_s), to if len(to) <= NEXT_CHARACTERS_MAX else "/")

    def ticket(self, attempt: LoginAttempt) -> str:
        """Return the ticket that the page keeps for the attempt."""
        value = f"{attempt.seed}.{attempt.begun_s}.{_text(attempt.to.encode())}"
        return f"{value}.{self._mac('ticket', value)}"

    def take(self, ticket: str, state: str, *, now_s: float) -> LoginAttempt:
        """Return the attempt of a ticket and a state, and refuse them from now on.

        Raises:
            CalabashError: NOT_AUTHENTICATED if ticket and state are not of the same attempt, or if the attempt is too
                old or was used before.
        """
        value, _, mac = ticket.rpartition(".")
        parts = value.split(".")
        if len(parts) != 3 or not _same(self._mac("ticket", value), mac):
            raise _refused("the attempt to log in was not started in this browser")
        attempt = self._attempt(parts[0], int(parts[1]), base64.urlsafe_b64decode(parts[2] + "==").decode())
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

    def _attempt(self, seed: str, begun_s: int, to: str) -> LoginAttempt:
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
