"""MPS service of one device or MIG instance: daemon, server, clients, and the shares of its allocations.

A client that joins without admission gets the smallest share that an allocation holds. While a program is admitted
(``admission_queue``), the server gives that program's share. ``watchdog`` detects faults and deaths.
"""

from __future__ import annotations

import threading
from pathlib import Path

import structlog

from calabash.adapters.gpu.nvidia.mps import MpsControl
from calabash.adapters.host.processes import Process
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId
from calabash.node.modes.mps.admission import AdmissionSocket
from calabash.node.modes.mps.admission_queue import AdmissionQueue
from calabash.node.modes.mps.clients import Clients
from calabash.node.modes.mps.daemon import CardDaemon
from calabash.node.modes.mps.notices import ServiceNotices, ServiceTools
from calabash.node.modes.mps.shares import Share, Shares
from calabash.node.modes.mps.target import Served
from calabash.node.modes.mps.watchdog import ServiceWatchdog

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
                    self.socket_path,
                    allocation_of=self._tools.allocation_of,
                    admission=self._admissions.admitted,
                    joined=self._admissions.joined,
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
