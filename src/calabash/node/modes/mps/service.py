"""MPS service of one device or MIG instance: daemon, server, clients, and the shares of its allocations.

A client that joins without admission gets the smallest share that an allocation holds. While a program is admitted
(``admission``), the server gives that program's share.

The watchdog of a service detects faults, deaths of its daemon and server, and shares that were changed from outside. A fatal
fault of one client affects all clients. The server reports it (FAULT) and accepts no client until all affected ones have left.
If they do not leave within a second, the server is shut down, and the next program gets a new one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from calabash.adapters.gpu.nvidia.mps import MpsControl, ServerState, ServerStatus
from calabash.adapters.host.processes import Process, alive
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId
from calabash.node.modes.mps.admission import AdmissionQueue, AdmissionSocket
from calabash.node.modes.mps.daemon import CardDaemon, Clients, Share, Shares
from calabash.node.modes.mps.notices import ServiceNotices, ServiceTools
from calabash.node.modes.mps.target import Served

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
        """Set the wanted share again if the server gives another one.

        Returns one line of text if another program has changed the share.
        """
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
        """Restart the service in a thread, because a start takes seconds and other services must be polled meanwhile.

        Args:
            message: text of the event when programs are served again; "" for none.
        """
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


log = structlog.get_logger(__name__)


class CardService:
    """One MPS service. Methods may be called from any thread; all but ``hold`` and ``leave`` may take seconds."""

    def __init__(self, served: Served, directory: Path, tools: ServiceTools) -> None:
        self.served = served
        self.control = MpsControl(directory, served.uuid, tools.environment, tools.files)
        self._directory = directory
        self._tools = tools
        self._lock = threading.RLock()
        self._shares = Shares()
        self._daemon = CardDaemon(served, self.control, self._shares, Clients(tools.allocation_of))
        self._notices = notices = ServiceNotices(tools)
        self._watch = ServiceWatchdog(self._daemon, notices, lock=self._lock, ensure=self.ensure)
        self._admissions = AdmissionQueue(
            self._daemon, notices, lock=self._lock, ensure=self.ensure, allocation_of=tools.allocation_of
        )
        self._admission_socket: AdmissionSocket | None = None
        self._begun = False

    @property
    def socket_path(self) -> Path:
        """Path of the admission socket, the only file in its directory, which containers mount."""
        return self._directory / "door" / "knock"

    @property
    def daemon(self) -> Process | None:
        """The daemon process that was started or adopted last; None after it was ended."""
        return self._daemon.process

    @property
    def idle(self) -> bool:
        """True if no allocation holds a share."""
        return self._shares.idle

    @property
    def serves(self) -> bool:
        """True if new programs are served, as of the last poll."""
        return self._begun and self._watch.healthy and self._daemon.serving

    def holds(self, allocation: AllocationId) -> bool:
        """Return True if an allocation holds a share."""
        return self._shares.share_of(allocation) is not None

    def hold(self, allocation: AllocationId, share: Share) -> None:
        """Set the share of an allocation."""
        self._shares.hold(allocation, share)

    def leave(self, allocation: AllocationId) -> None:
        """Remove the share of an allocation."""
        self._shares.leave(allocation)

    def resume(self) -> None:
        """Mark the service as started by an earlier pool, so that polls restart it if it does not run."""
        self._begun = True

    def adopt(self, daemon: Process | None) -> Process | None:
        """Use the daemon that an earlier pool started, and kill all other processes of the service.

        Args:
            daemon: the recorded daemon; None to look for one that was not recorded.

        Returns:
            The daemon of the service; None if none runs.
        """
        with self._lock:
            if daemon is not None:
                self._daemon.adopt(daemon)
            return self._daemon.adopt_unknown()

    def ensure(self) -> None:
        """Start daemon, server and admission socket if necessary, and set the default share. Raises CalabashError."""
        with self._lock:
            self._daemon.serve()
            if self._admission_socket is None:
                self._admission_socket = AdmissionSocket(
                    self.socket_path, allocation_of=self._tools.allocation_of, admission=self._admissions
                )
            self._begun = True

    def poll(self) -> None:
        """Check the daemon, the server and its clients, several times a second. Does nothing before the first ``ensure``."""
        if self._begun:
            self._watch.poll()
            self.report()

    def report(self) -> None:
        """Deliver the queued health events. Must not be called with a lock held."""
        self._notices.report()

    def verify(self) -> list[str]:
        """Check the share that the server gives, once a second. Return one line for each correction."""
        return self._watch.verify()

    def stop(self) -> None:
        """Stop the service, which no allocation may hold any more. Remaining clients end with it."""
        self.release()
        with self._lock:
            self._watch.report_unseen_fault()
            try:
                if self._daemon.running:
                    self.control.quit()
            except CalabashError as error:
                log.warning("the MPS daemon did not quit", served=self.served.name, error=error.message)
            self._daemon.end()
            self._daemon.clients.clear()

    def release(self) -> None:
        """Close the admission socket when the pool stops. The daemon and its clients keep running."""
        socket, self._admission_socket = self._admission_socket, None
        if socket is not None:
            socket.close()
