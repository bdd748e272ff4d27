"""Whose token it is: read by the server's keys as they are on disk now, and by what was revoked until now."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from calabash.broker.server.keyring import KEYS_FILE, TOKENS_FILE, Keyring, TokenOffice
from calabash.broker.tokens import TokenClaims, read_token, require_live


class Gatekeeper:
    """Reads tokens; what the office has changed meanwhile counts at once."""

    def __init__(self, directory: Path, *, now: Callable[[], float] = time.time) -> None:
        self._office = TokenOffice(directory)
        self._paths = (directory / KEYS_FILE, directory / TOKENS_FILE)
        self._now = now
        self._marks: tuple[object, ...] = ()
        self._keyring: Keyring = self._office.keyring()
        self._revoked: frozenset[str] = frozenset()

    def admit(self, text: str, *, ended_too: bool = False) -> TokenClaims:
        """What it says. ``ended_too``: one that was revoked or has expired may still look after what it has.

        Raises NOT_PERMITTED.
        """
        self._look()
        now = self._now()
        claims = read_token(text, server=self._keyring.server, keys=self._keyring.known(), now=now)
        if not ended_too:
            require_live(claims, revoked=claims.id in self._revoked, now=now)
        return claims

    def ended(self, token: str, expires: float) -> str:
        """Why a token of that id gives no right any more; "" while it does."""
        self._look()
        if token in self._revoked:
            return "token revoked"
        return "token expired" if self._now() >= expires else ""

    def _look(self) -> None:
        marks = tuple(_mark(path) for path in self._paths)
        if marks != self._marks:
            self._keyring, self._revoked = self._office.keyring(), self._office.issued().revoked()
            self._marks = marks


def _mark(path: Path) -> object:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
