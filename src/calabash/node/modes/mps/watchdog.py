"""Watchdog of an MPS service: detects faults, deaths of its daemon and server, and shares that were changed from outside.

A fatal fault of one client affects all clients. The server reports it (FAULT) and accepts no client until all affected ones
have left. If they do not leave within a second, the server is shut down, and the next program gets a new one.
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
from calabash.node.modes.mps.notices import ServiceNotices

NAMED_WITHIN_S = 0.3  # the server logs the PID that made a fault shortly after the fault can be seen
PART_AFTER_S = 1.0  # affected clients may leave by themselves within this time
RETRY_S, RETRY_MAX_S = 1.0, 30.0  # first and longest pause before another start is tried; doubled each time

log = structlog.get_logger(__name__)


class ServiceWatchdog:
    """The watchdog of one MPS service.

    Args:
        daemon: the daemon of the service.
        notices: receives reports of faults and recoveries.
        lock: lock of the service.
        ensure: starts daemon and server if necessary; raises CalabashError.
    """

    def __init__(
        self, daemon: CardDaemon, notices: ServiceNotices, *, lock: threading.RLock, ensure: Callable[[], None]
    ) -> None:
        self._daemon = daemon
        self._notices = notices
        self._lock = lock
        self._ensure = ensure
        self._name = daemon.served.name
        self._faulted_at = 0.0
        self._unnamed_until = 0.0  # until when the PID that made a fault is awaited; 0 if no fault was seen
        self._down = False
        self._retry_s, self._retry_at = RETRY_S, 0.0

    @property
    def healthy(self) -> bool:
        """True if the service is not down and no fault is being handled."""
        return not self._down and not self._faulted_at

    def poll(self) -> None:
        """Check the daemon, the server and its clients, several times a second.

        Does nothing while no allocation holds a share, before the time of the next start, or while the lock is held.
        """
        daemon = self._daemon
        if daemon.shares.idle or time.monotonic() < self._retry_at or not self._lock.acquire(blocking=False):
            return
        try:
            if not daemon.running:
                self._restart()
                return
            state = daemon.read_server() if daemon.server is not None and alive(daemon.server) else None
            culprit = (
                daemon.control.faulting_client()
            )  # also if all affected clients have left and the server serves again
            if state is None:
                self._server_gone()
            elif state.status is ServerStatus.FAULT or culprit or self._unnamed_until:
                self._fault(state, culprit)
            elif self._faulted_at:
                self._back()
        finally:
            self._lock.release()

    def verify(self) -> list[str]:
        """Set the wanted share again if the server gives another one. Return one line if it was changed from outside."""
        daemon = self._daemon
        with self._lock:
            if daemon.shares.idle or not daemon.running or daemon.server is None or self._faulted_at:
                return []
            wanted, said = daemon.shares.wanted(), daemon.control.share(daemon.server.pid)
            if said == (wanted.percent, wanted.memory_mib):
                return []
            known, wrong = daemon.applied == wanted, daemon.apply_share()
            if not known and not wrong:
                return []  # the set of allocations has changed
            gave = f"the MPS server of {self._name} gave {said[0]:g}% and {said[1]} MiB to new clients"
            return [
                f"{gave} and was set to {wanted.percent}% and {wanted.memory_mib} MiB again{wrong and ', ' + wrong}"
            ]

    def report_unseen_fault(self) -> None:
        """Report a fault that no poll has seen, because all affected clients have left."""
        culprit = self._daemon.control.faulting_client()
        if culprit and not self._faulted_at:
            self._notices.report_fault(culprit, self._daemon.clients)

    def _restart(self) -> None:
        hit = self._daemon.clients.by_allocation()
        self._daemon.end()
        self._daemon.clients.clear()
        if not self._down:
            self._notices.report_failure("mps_daemon_died", hit, "the MPS daemon died")
        self._mend(f"the MPS daemon of {self._name} runs again")

    def _server_gone(self) -> None:
        hit, first = self._daemon.clients.by_allocation(), self._daemon.server is None
        self._daemon.lost_server()
        if not first and not self._faulted_at:
            self._notices.report_failure("mps_server_died", hit, "the MPS server died")
        self._mend("" if first and not self._down else f"the MPS server of {self._name} runs again")

    def _mend(self, message: str) -> None:
        """Restart the service in a thread, because a start takes seconds and other services must be polled meanwhile."""
        self._down = True
        self._retry_at = time.monotonic() + self._retry_s
        threading.Thread(
            target=self._mended, args=(message,), name=f"mps-{self._daemon.served.directory}", daemon=True
        ).start()

    def _mended(self, message: str) -> None:
        self._start_again(message)
        self._notices.report()

    def _start_again(self, message: str) -> None:
        with self._lock:
            if self._daemon.shares.idle:
                return
            try:
                self._ensure()
            except CalabashError as error:
                log.error("the MPS service cannot be restarted", served=self._name, error=error.message)
                self._retry_at = time.monotonic() + self._retry_s
                self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
                return
            self._down, self._retry_s, self._retry_at = False, RETRY_S, 0.0
            if self._faulted_at:
                self._back()
            elif message:
                self._notices.report_recovery(message)

    def _fault(self, state: ServerState, culprit: int) -> None:
        now = time.monotonic()
        if not self._faulted_at:
            self._unnamed_until = self._unnamed_until or now + NAMED_WITHIN_S
            if culprit or now >= self._unnamed_until:
                self._faulted_at, self._unnamed_until = now, 0.0
                self._notices.report_fault(culprit, self._daemon.clients)
        elif state.status is ServerStatus.FAULT and now - self._faulted_at > PART_AFTER_S:
            self._daemon.control.ask(f"shutdown_server {state.pid} -f")
            self._server_gone()

    def _back(self) -> None:
        took_s, self._faulted_at = time.monotonic() - self._faulted_at, 0.0
        self._daemon.clients.clear()
        self._daemon.apply_share()
        self._notices.report_recovery(f"the MPS server of {self._name} serves again after {took_s:.1f} s")
