"""Names that somebody must not read, kept as long as nobody and nothing has come or gone.

They are needed for every text of every reply, and to find them is to look at everything that is held and waits.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

KEPT = 256  # of so many who ask


class HiddenNames:
    """What was found last, of each who asked lately. Safe for threads."""

    def __init__(self, *, kept: int = KEPT) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._found: OrderedDict[Hashable, tuple[object, object, frozenset[str]]] = OrderedDict()

    def of(self, who: Hashable, people: object, mark: object, find: Callable[[], frozenset[str]]) -> frozenset[str]:
        """What was found for ``who`` with the very same ``people`` and an equal ``mark`` of all else, or is found now."""
        with self._lock:
            known = self._found.get(who)
            if known is not None and known[0] is people and known[1] == mark:
                self._found.move_to_end(who)
                return known[2]
        found = find()
        with self._lock:
            self._found[who] = (people, mark, found)
            self._found.move_to_end(who)
            while len(self._found) > self._kept:
                self._found.popitem(last=False)
        return found
