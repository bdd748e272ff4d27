"""Record of what actors and faults did and observed, to compare with the product's own records.

Times are seconds since 1970, as the product's own are. Everything may be called from any thread.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

STARVED = "machine starved"  # a fault that was not injected: the pool got no processor


@dataclass(slots=True, kw_only=True)
class Run:
    """One ``calabash run`` as its starter saw it. ``tag`` is a word of its command that identifies it everywhere.

    ``began_at`` and ``said`` are the program's own words, 0 and empty when it never began. ``code`` is the exit code, negative
    for a signal; ``output`` is all that it printed. ``harmed`` lists the faults that were injected into this run.
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
    """A fault that was injected between two moments; ``device``: the index of its card, -1 for none."""

    kind: str
    what: str
    at: float
    until: float
    device: int = -1

    def meets(self, since: float, until: float, *, after_s: float = 0.0) -> bool:
        """Return True if the fault lasted, or had ended less than ``after_s`` before, in that time."""
        return self.at <= until and since <= self.until + after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A broken promise of the product: its name, and the observation."""

    promise: str
    what: str


class Diary:
    """All runs, faults and violations. ``told`` is called once per violation, ``broken`` at the start of each fault."""

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
        """Return the runs that have a process and have not ended."""
        return [run for run in self.runs() if run.pid and run.code is None]

    def harm(self, tag: str, what: str) -> None:
        """Record a fault that was injected into a run."""
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
        """Record a fault that lasts as long as the block; its end is infinite until then."""
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
        """Return the faults of these kinds, by default of all, with those that last."""
        with self._lock:
            found = [*self._faults, *self._open.values()]
        return [fault for fault in found if not kinds or fault.kind in kinds]

    def violation(self, promise: str, what: str) -> bool:
        """Record a violation; return True if it is a new one."""
        with self._lock:
            if (promise, what) in self._violations:
                return False
            found = self._violations[promise, what] = Violation(promise=promise, what=what)
        self._told(found)
        return True

    def violations(self) -> list[Violation]:
        with self._lock:
            return list(self._violations.values())
