"""Threads that do one thing again and again, outlive every surprise, and stop when they are told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from calabash.adapters.clock import Clock
from calabash.model.errors import CalabashError

STOP_WITHIN_NS = 3_000_000_000  # a thread that a hung driver holds is left behind

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Loop:
    name: str
    body: Callable[[], float | None]
    every_s: float
    wake: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None


class Loops:
    """A set of such threads; their names are unique but for loops that are never woken."""

    def __init__(self, clock: Clock, *, complain: Callable[[CalabashError], None]) -> None:
        self._clock = clock
        self._complain = complain
        self._loops: list[_Loop] = []
        self._stopping = threading.Event()

    def add(self, name: str, body: Callable[[], float | None], *, every_s: float) -> None:
        """``body`` is to be called in a thread of its own, again ``every_s`` after it has returned or when woken.

        It may return another number of seconds for this once.
        """
        self._loops.append(_Loop(name, body, every_s))

    def start(self) -> None:
        for loop in self._loops:
            loop.thread = threading.Thread(target=self._run, args=(loop,), name=loop.name, daemon=True)
            loop.thread.start()

    def wake(self, name: str) -> None:
        """Let that loop go round at once."""
        for loop in self._loops:
            if loop.name == name:
                loop.wake.set()

    def stop(self) -> None:
        """Let every round end, and wait for it, but not for ever."""
        self._stopping.set()
        for loop in self._loops:
            loop.wake.set()
        deadline_ns = self._clock.monotonic_ns() + STOP_WITHIN_NS
        for loop in self._loops:
            if loop.thread is not None:
                loop.thread.join(timeout=max(0.0, (deadline_ns - self._clock.monotonic_ns()) / 1e9))

    def _run(self, loop: _Loop) -> None:
        while not self._stopping.is_set():
            pause_s: float | None = None
            try:
                pause_s = loop.body()
            except CalabashError as error:
                self._complain(error)
            except Exception:
                # Without these threads nothing is ever given back.
                log.exception("a thread failed once and goes on", thread=loop.name)
            loop.wake.wait(loop.every_s if pause_s is None else pause_s)
            loop.wake.clear()
