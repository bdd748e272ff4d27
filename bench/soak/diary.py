"""What actors and faults saw and did, with their own eyes: the side of the story that the product is held against.

Times are seconds since 1970, as the product's own are. Everything may be called from any thread.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

STARVED = "machine starved"  # a fault that nobody made: the pool got no processor


@dataclass(slots=True, kw_only=True)
class Run:
    """One ``calabash run`` as whoever started it saw it. ``tag`` is a word of its command, by which it is known everywhere.

    ``began_at`` and ``said`` are the program's own words, 0 and empty when it never began. ``code`` is the exit code, negative
    for a signal; ``output`` is all that it printed. ``harmed``: what a fault did to this very run.
    """

    tag: str
    actor: str
    tenant: str
    words: tuple[str, ...]
    asked_at: float
    remote: bool = False
    pid: int = 0
    began_at: float = 0.0
    ended_at: float = 0.0
    code: int | None = None
    output: str = ""
    said: dict[str, float] = field(default_factory=dict)
    harmed: list[str] = field(default_factory=list)

    @property
    def began(self) -> bool:
        return self.began_at > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that was broken on purpose between two moments; ``device``: the index of its card, -1 for none."""

    kind: str
    what: str
    at: float
    until: float
    device: int = -1

    def meets(self, since: float, until: float, *, after_s: float = 0.0) -> bool:
        """Whether it was, or had been less than ``after_s`` before, in that time."""
        return self.at <= until and since <= self.until + after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A promise that was not kept: which, and how it was seen."""

    promise: str
    what: str


class Diary:
    """All of it. ``told`` hears of each violation once, ``broken`` of each fault when it begins."""

    def __init__(
        self, told: Callable[[Violation], None] = lambda _: None, broken: Callable[[Fault], None] = lambda _: None
    ) -> None:
        self._told, self._broken = told, broken
        self._lock = threading.RLock()
        self._runs: dict[str, Run] = {}
        self._faults: list[Fault] = []
        self._open: dict[int, Fault] = {}
        self._violations: dict[tuple[str, str], Violation] = {}
        self._counts: Counter[str] = Counter()

    def run(self, run: Run) -> None:
        with self._lock:
            self._runs[run.tag] = run

    def runs(self) -> list[Run]:
        with self._lock:
            return list(self._runs.values())

    def live(self) -> list[Run]:
        """Those that have a process and have not ended."""
        return [run for run in self.runs() if run.pid and run.code is None]

    def harm(self, tag: str, what: str) -> None:
        """A fault was done to that run."""
        with self._lock:
            if tag in self._runs:
                self._runs[tag].harmed.append(what)

    def count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self._counts[what] += number

    def counts(self) -> Counter[str]:
        with self._lock:
            return Counter(self._counts)

    @contextmanager
    def fault(self, kind: str, what: str, *, device: int = -1) -> Iterator[None]:
        """It lasts as long as the block; until then its end is not known, which counts as not yet."""
        begun = Fault(kind=kind, what=what, at=time.time(), until=float("inf"), device=device)
        with self._lock:
            self._open[id(begun)] = begun
        self._broken(begun)
        try:
            yield
        finally:
            with self._lock:
                del self._open[id(begun)]
                self._faults.append(Fault(kind=kind, what=what, at=begun.at, until=time.time(), device=device))

    def faults(self, *kinds: str) -> list[Fault]:
        """Those of these kinds, of all when none is named; those that last among them."""
        with self._lock:
            found = [*self._faults, *self._open.values()]
        return [fault for fault in found if not kinds or fault.kind in kinds]

    def violation(self, promise: str, what: str) -> bool:
        """Whether it is a new one."""
        with self._lock:
            if (promise, what) in self._violations:
                return False
            found = self._violations[promise, what] = Violation(promise=promise, what=what)
        self._told(found)
        return True

    def violations(self) -> list[Violation]:
        with self._lock:
            return list(self._violations.values())
