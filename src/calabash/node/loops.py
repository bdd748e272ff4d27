"""Threads that call a function periodically, survive its exceptions, and can be woken and stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from calabash.adapters.clock import Clock
from calabash.model.errors import CalabashError

STOP_WITHIN_NS = 3_000_000_000  # a thread blocked in a driver call is not waited for any longer

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Loop:
    name: str
    body: Callable[[], float | None]
    every_s: float
    wake: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None


class Loops:
    """Set of periodic threads. Names are unique, except among loops that are never woken.

    Args:
        complain: called with each CalabashError that a function raises.
    """

    def __init__(self, clock: Clock, *, complain: Callable[[CalabashError], None]) -> None:
        self._clock = clock
        self._complain = complain
        self._loops: list[_Loop] = []
        self._stopping = threading.Event()

    def add(self, name: str, body: Callable[[], float | None], *, every_s: float) -> None:
        """Add a loop that calls ``body`` in a separate thread, again ``every_s`` after it has returned or when woken.

        A number of seconds that ``body`` returns replaces ``every_s`` for the next pause.
        """
        self._loops.append(_Loop(name, body, every_s))

    def start(self) -> None:
        for loop in self._loops:
            loop.thread = threading.Thread(target=self._run, args=(loop,), name=loop.name, daemon=True)
            loop.thread.start()

    def wake(self, name: str) -> None:
        """End the pause of a loop so that it runs at once."""
        for loop in self._loops:
            if loop.name == name:
                loop.wake.set()

    def stop(self) -> None:
        """Stop all loops and wait for running calls, at most STOP_WITHIN_NS."""
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
                # The loop must go on: without it no allocation is released.
                log.exception("a thread failed once and goes on", thread=loop.name)
            loop.wake.wait(loop.every_s if pause_s is None else pause_s)
            loop.wake.clear()
