"""Authenticate requests by token. Keys and revocations are read again whenever their files on disk have changed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from calabash.broker.server.keyring import KEYS_FILE, TOKENS_FILE, Keyring, TokenRegistry
from calabash.broker.tokens import TokenClaims, read_token, require_live


class TokenVerifier:
    """Verifies tokens. Changes of keys and revocations on disk take effect at the next call."""

    def __init__(self, directory: Path, *, now: Callable[[], float] = time.time) -> None:
        self._registry = TokenRegistry(directory)
        self._paths = (directory / KEYS_FILE, directory / TOKENS_FILE)
        self._now = now
        self._marks: tuple[object, ...] = ()
        self._keyring: Keyring = self._registry.keyring()
        self._revoked: frozenset[str] = frozenset()

    def verify(self, text: str, *, ended_too: bool = False) -> TokenClaims:
        """Return the claims of a token.

        Args:
            text: the token.
            ended_too: also accept a token that was revoked or has expired, so that its holder can still list and
                release the leases that it holds.

        Raises:
            CalabashError: NOT_PERMITTED if the token is not valid.
        """
        self._reload()
        now = self._now()
        claims = read_token(text, server=self._keyring.server, keys=self._keyring.known(), now=now)
        if not ended_too:
            require_live(claims, revoked=claims.id in self._revoked, now=now)
        return claims

    def end_reason(self, token: str, expires: float) -> str:
        """Return the reason why a token is no longer valid; "" if it is valid.

        Args:
            token: ID of the token.
            expires: end of the token in seconds since the epoch.
        """
        self._reload()
        if token in self._revoked:
            return "token revoked"
        return "token expired" if self._now() >= expires else ""

    def _reload(self) -> None:
        marks = tuple(_mark(path) for path in self._paths)
        if marks != self._marks:
            self._keyring, self._revoked = self._registry.keyring(), self._registry.issued().revoked()
            self._marks = marks


def _mark(path: Path) -> object:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
