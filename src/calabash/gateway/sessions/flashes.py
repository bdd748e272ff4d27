"""One-time messages that the page after a form shows; kept in memory only, because they may contain a secret."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

KEPT_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Flash:
    """Message for the next page, with an optional secret such as a new token."""

    said: str
    secret: str = ""


class Flashes:
    """Messages for the next page, at most one for each session and KEPT_MAX in all."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, Flash] = OrderedDict()

    def put(self, session: str, flash: Flash) -> None:
        """Store the message for the session's next page; drops the oldest messages above KEPT_MAX."""
        self._kept[_key(session)] = flash
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)

    def take(self, session: str) -> Flash | None:
        """Return the message of the session and delete it; None if there is none."""
        return self._kept.pop(_key(session), None)


def _key(session: str) -> bytes:
    return hashlib.sha256(session.encode()).digest()
