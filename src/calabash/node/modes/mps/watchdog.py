"""The watch over a card's service: faults, deaths of its daemon and its server, and shares that somebody else has set.

A fatal fault of one client is everybody's. The server says so by itself (FAULT) and takes nobody until all that were hit
have gone; those that do not go in a second are parted from it by force, and the next program finds a new server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from calabash.adapters.gpu.nvidia.mps import ServerState, ServerStatus
from calabash.adapters.host.processes import alive
from calabash.model.errors import CalabashError
from calabash.node.modes.mps.daemon import CardDaemon
from calabash.node.modes.mps.notices import ServiceNews

NAMED_WITHIN_S = 0.3  # the server writes who made a fault a moment after everybody can see that there is one
PART_AFTER_S = 1.0  # those that a fault hit may leave by themselves for so long
RETRY_S, RETRY_MAX_S = 1.0, 30.0  # what does not start is tried again, ever less often

log = structlog.get_logger(__name__)


class ServiceWatch:
    """The watch over one card.

    Args:
        lock: the card's.
        ensure: the card serves; raises CalabashError.
    """

    def __init__(
        self, daemon: CardDaemon, news: ServiceNews, *, lock: threading.RLock, ensure: Callable[[], None]
    ) -> None:
        self._daemon = daemon
        self._news = news
        self._lock = lock
        self._ensure = ensure
        self._name = daemon.served.name
        self._faulted_at = 0.0
        self._unnamed_until = 0.0  # a fault was seen, and not yet whose it is
        self._down = False
        self._retry_s, self._retry_at = RETRY_S, 0.0

    @property
    def well(self) -> bool:
        """Whether it is not down and no fault is being got over."""
        return not self._down and not self._faulted_at

    def look(self) -> None:
        """Several times a second: is the daemon there, does the server serve, who are its clients."""
        daemon = self._daemon
        if daemon.shares.idle or time.monotonic() < self._retry_at or not self._lock.acquire(blocking=False):
            return  # whoever has it looks by itself
        try:
            if not daemon.running:
                self._restart()
                return
            look = daemon.look() if daemon.server is not None and alive(daemon.server) else None
            # All clients that were hit may have ended by now, and the server may serve again.
            culprit = daemon.control.faulting_client()
            if look is None:
                self._server_gone()
            elif look.status is ServerStatus.FAULT or culprit or self._unnamed_until:
                self._fault(look, culprit)
            elif self._faulted_at:
                self._back()
        finally:
            self._lock.release()

    def verify(self) -> list[str]:
        """Once a second: the server gives what it should; what was mended."""
        daemon = self._daemon
        with self._lock:
            if daemon.shares.idle or not daemon.running or daemon.server is None or self._faulted_at:
                return []
            wanted, said = daemon.shares.wanted(), daemon.control.share(daemon.server.pid)
            if said == (wanted.percent, wanted.memory_mib):
                return []
            known, wrong = daemon.given == wanted, daemon.give()
            if not known and not wrong:
                return []  # somebody came or left
            gave = f"the MPS server of {self._name} gave {said[0]:g}% and {said[1]} MiB to whoever comes"
            return [f"{gave} and was told {wanted.percent}% and {wanted.memory_mib} MiB again{wrong and ', ' + wrong}"]

    def tell_unseen(self) -> None:
        """A fault that was not seen yet: all that it hit have left by now."""
        culprit = self._daemon.control.faulting_client()
        if culprit and not self._faulted_at:
            self._news.fault(culprit, self._daemon.clients)

    def _restart(self) -> None:
        hit = self._daemon.clients.by_allocation()
        self._daemon.end()
        self._daemon.clients.clear()
        if not self._down:
            self._news.hit("mps_daemon_died", hit, "the MPS daemon died")
        self._mend(f"the MPS daemon of {self._name} runs again")

    def _server_gone(self) -> None:
        hit, first = self._daemon.clients.by_allocation(), self._daemon.server is None
        self._daemon.lost_server()
        if not first and not self._faulted_at:
            self._news.hit("mps_server_died", hit, "the MPS server died")
        self._mend("" if first and not self._down else f"the MPS server of {self._name} runs again")

    def _mend(self, news: str) -> None:
        """In a thread of its own: a card takes seconds to start, and the other cards are looked at meanwhile."""
        self._down = True
        self._retry_at = time.monotonic() + self._retry_s
        threading.Thread(
            target=self._mended, args=(news,), name=f"mps-{self._daemon.served.directory}", daemon=True
        ).start()

    def _mended(self, news: str) -> None:
        self._start_again(news)
        self._news.report()

    def _start_again(self, news: str) -> None:
        with self._lock:
            if self._daemon.shares.idle:
                return
            try:
                self._ensure()
            except CalabashError as error:
                log.error("the MPS service does not come back", served=self._name, error=error.message)
                self._retry_at = time.monotonic() + self._retry_s
                self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
                return
            self._down, self._retry_s, self._retry_at = False, RETRY_S, 0.0
            if self._faulted_at:
                self._back()
            elif news:
                self._news.back(news)

    def _fault(self, look: ServerState, culprit: int) -> None:
        now = time.monotonic()
        if not self._faulted_at:
            self._unnamed_until = self._unnamed_until or now + NAMED_WITHIN_S
            if culprit or now >= self._unnamed_until:
                self._faulted_at, self._unnamed_until = now, 0.0
                self._news.fault(culprit, self._daemon.clients)
        elif look.status is ServerStatus.FAULT and now - self._faulted_at > PART_AFTER_S:
            self._daemon.control.ask(f"shutdown_server {look.pid} -f")
            self._server_gone()

    def _back(self) -> None:
        took_s, self._faulted_at = time.monotonic() - self._faulted_at, 0.0
        self._daemon.clients.clear()
        self._daemon.give()
        self._news.back(f"the MPS server of {self._name} serves again after {took_s:.1f} s")
