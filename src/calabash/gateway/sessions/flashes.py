"""What the page after a form says of it: kept in memory for the one page that shows it, since it may hold a secret."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

KEPT_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Flash:
    """``secret`` is shown this once."""

    said: str
    secret: str = ""


class Flashes:
    """One for each session at most."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, Flash] = OrderedDict()

    def keep(self, session: str, flash: Flash) -> None:
        """For the next page of that session; the oldest of others goes where there are too many."""
        self._kept[_key(session)] = flash
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)

    def take(self, session: str) -> Flash | None:
        """What was kept, once."""
        return self._kept.pop(_key(session), None)


def _key(session: str) -> bytes:
    return hashlib.sha256(session.encode()).digest()
