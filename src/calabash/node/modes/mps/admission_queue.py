"""Turns at the door of a card's service: while a program is let in the server gives that program's share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from calabash.adapters.gpu.nvidia.mps import ServerState
from calabash.adapters.host.processes import identify
from calabash.model.request import AllocationId
from calabash.node.modes.mps.daemon import CardDaemon
from calabash.node.modes.mps.notices import ServiceNews
from calabash.node.modes.mps.shares import Share

SMS_TOLERANCE = 2  # the driver rounds to what the chip can divide


class CardTurns:
    """The turns of one card.

    Args:
        lock: the card's; not held while a program joins, so a fault is seen whoever lingers.
        ensure: the card serves; raises CalabashError.
        allocation_of: whose a process is.
    """

    def __init__(
        self,
        daemon: CardDaemon,
        news: ServiceNews,
        *,
        lock: AbstractContextManager[bool],
        ensure: Callable[[], None],
        allocation_of: Callable[[int], AllocationId | None],
    ) -> None:
        self._daemon = daemon
        self._news = news
        self._lock = lock
        self._ensure = ensure
        self._allocation_of = allocation_of

    @contextmanager
    def admitted(self, allocation: AllocationId, pid: int) -> Iterator[bool]:
        """As long as this is entered the server gives the share of this allocation; False: it holds none."""
        daemon = self._daemon
        share = daemon.shares.of(allocation)
        if share is None:
            yield False
            return
        with self._lock:
            self._ensure()
            before = daemon.look()
            daemon.clients.let_in(pid, allocation)
            daemon.shares.window = share
            wrong = daemon.give()
        if wrong:
            told = f"the server was told {share.percent}% and {share.memory_mib} MiB, {wrong}"
            self._news.unverified(allocation, told)
        try:
            yield True
        finally:
            with self._lock:
                daemon.shares.window = None
                daemon.clients.let_in(pid, allocation)
                daemon.give()
                self._refuse_others(allocation, share, before, daemon.look())

    def joined(self, allocation: AllocationId, pid: int, multiprocessors: int) -> None:
        """What a program that was let in has said of its multiprocessors; 0: nothing."""
        share = self._daemon.shares.of(allocation)
        if share is None or multiprocessors == 0 or self._daemon.served.multiprocessors == 0:
            return
        served = self._daemon.served
        expected = max(1, served.multiprocessors * share.percent // 100)
        if multiprocessors > expected + SMS_TOLERANCE or multiprocessors < expected - SMS_TOLERANCE:
            self._news.unverified(
                allocation,
                f"program {pid} sees {multiprocessors} multiprocessors of {served.multiprocessors},"
                f" its share of {share.percent}% is {expected}",
            )

    def _refuse_others(
        self, allocation: AllocationId, share: Share, before: ServerState | None, after: ServerState | None
    ) -> None:
        """Whoever slipped in while the share was another's is parted from the card."""
        if before is None or after is None:
            return
        for pid in set(after.clients) - set(before.clients):
            whose = self._allocation_of(pid)
            if whose == allocation or identify(pid) is None:
                continue
            own = self._daemon.shares.of(whose) if whose is not None else None
            if own is not None and own.percent >= share.percent and own.memory_mib >= share.memory_mib:
                continue
            self._daemon.control.terminate(after.pid, pid)
            self._news.slipped_in(pid, whose, allocation)
