"""Admissions to an MPS service: sets the share of the allocation on the server while its program joins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from calabash.adapters.gpu.nvidia.mps import ServerState
from calabash.adapters.host.processes import identify
from calabash.model.request import AllocationId
from calabash.node.modes.mps.daemon import CardDaemon
from calabash.node.modes.mps.notices import ServiceNotices
from calabash.node.modes.mps.shares import Share

SMS_TOLERANCE = 2  # the driver rounds to what the chip can divide


class AdmissionQueue:
    """Admissions to one MPS service.

    Args:
        daemon: the daemon of the service.
        notices: receives reports of wrong shares and of clients that joined without admission.
        lock: lock of the service; not held while a program joins, so that faults are still noticed.
        ensure: starts daemon and server if necessary; raises CalabashError.
        allocation_of: returns the allocation of a process.
    """

    def __init__(
        self,
        daemon: CardDaemon,
        notices: ServiceNotices,
        *,
        lock: AbstractContextManager[bool],
        ensure: Callable[[], None],
        allocation_of: Callable[[int], AllocationId | None],
    ) -> None:
        self._daemon = daemon
        self._notices = notices
        self._lock = lock
        self._ensure = ensure
        self._allocation_of = allocation_of

    @contextmanager
    def admitted(self, allocation: AllocationId, pid: int) -> Iterator[bool]:
        """Have the server give the share of an allocation while the context is entered. Yields False if it has no share."""
        daemon = self._daemon
        share = daemon.shares.share_of(allocation)
        if share is None:
            yield False
            return
        with self._lock:
            self._ensure()
            before = daemon.read_server()
            daemon.clients.add_admitted(pid, allocation)
            daemon.shares.window = share
            wrong = daemon.apply_share()
        if wrong:
            details = f"the server was set to {share.percent}% and {share.memory_mib} MiB, {wrong}"
            self._notices.report_mismatch(allocation, details)
        try:
            yield True
        finally:
            with self._lock:
                daemon.shares.window = None
                daemon.clients.add_admitted(pid, allocation)
                daemon.apply_share()
                self._refuse_others(allocation, share, before, daemon.read_server())

    def joined(self, allocation: AllocationId, pid: int, multiprocessors: int) -> None:
        """Compare the number of multiprocessors that an admitted program reported with its share; 0: not reported."""
        share = self._daemon.shares.share_of(allocation)
        if share is None or multiprocessors == 0 or self._daemon.served.multiprocessors == 0:
            return
        served = self._daemon.served
        expected = max(1, served.multiprocessors * share.percent // 100)
        if multiprocessors > expected + SMS_TOLERANCE or multiprocessors < expected - SMS_TOLERANCE:
            self._notices.report_mismatch(
                allocation,
                f"program {pid} sees {multiprocessors} multiprocessors of {served.multiprocessors},"
                f" its share of {share.percent}% is {expected}",
            )

    def _refuse_others(
        self, allocation: AllocationId, share: Share, before: ServerState | None, after: ServerState | None
    ) -> None:
        """Terminate new clients of other allocations that got a larger share than theirs while the share was raised."""
        if before is None or after is None:
            return
        for pid in set(after.clients) - set(before.clients):
            whose = self._allocation_of(pid)
            if whose == allocation or identify(pid) is None:
                continue
            own = self._daemon.shares.share_of(whose) if whose is not None else None
            if own is not None and own.percent >= share.percent and own.memory_mib >= share.memory_mib:
                continue
            self._daemon.control.terminate(after.pid, pid)
            self._notices.report_unadmitted(pid, whose, allocation)
