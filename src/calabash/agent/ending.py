"""Ending the programs of an allocation: asked politely once, killed when they did not listen."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from calabash.model.request import AllocationId
from calabash.seams.host.processes import Process, send_signal

TERM_GRACE_NS = 5_000_000_000


@dataclass(slots=True)
class _Asked:
    since_ns: int
    terminated: set[Process] = field(default_factory=set)


class Ender:
    """Remembers who was asked and since when. ``processes_of`` finds the programs of an allocation right now."""

    def __init__(
        self,
        processes_of: Callable[[AllocationId], Iterable[Process]],
        *,
        signal_to: Callable[[Process, signal.Signals], bool] = send_signal,
    ) -> None:
        self._processes_of = processes_of
        self._signal_to = signal_to
        self._asked: dict[AllocationId, _Asked] = {}

    def end(self, allocations: Iterable[AllocationId], now_ns: int) -> None:
        """One round: SIGTERM to whoever has not had it, SIGKILL to all once the grace is over. Others are forgotten."""
        wanted = set(allocations)
        for gone in self._asked.keys() - wanted:
            del self._asked[gone]
        for allocation in wanted:
            asked = self._asked.setdefault(allocation, _Asked(since_ns=now_ns))
            late = now_ns - asked.since_ns >= TERM_GRACE_NS
            for process in self._processes_of(allocation):
                if late:
                    self._signal_to(process, signal.SIGKILL)
                elif process not in asked.terminated:
                    asked.terminated.add(process)
                    self._signal_to(process, signal.SIGTERM)
