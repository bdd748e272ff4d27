"""Admission of programs to an MPS service: at the admission socket programs ask for it and are admitted one at a time.

An MPS server gives the same share to every client that joins. A program could limit itself to its own share by its
environment, but it can also change its environment. So the server's default share is the smallest share that an
allocation holds, and it is raised to a program's share only while that program joins. The kernel tells which process
has connected to the socket. Waiting times are bounded: programs of an allocation whose admitted program did not join
are not admitted for ``PENALTY_S``.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import structlog

from calabash.adapters.gpu.nvidia.mps import ServerState
from calabash.adapters.host.processes import identify, peer_of
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId
from calabash.node.modes.mps.daemon import CardDaemon, Share
from calabash.node.modes.mps.notices import ServiceNotices

JOIN_S = 5.0  # a driver that initialises a device needs seconds
IDLE_S = 1.0
PENALTY_S = 60.0
_SAID = re.compile(rb"sms (\d{1,6})")

log = structlog.get_logger(__name__)


class Admission(Protocol):
    """The server of an MPS service, as the admission socket uses it; see ``Admissions``."""

    def admitted(self, allocation: AllocationId, pid: int) -> AbstractContextManager[bool]:
        """Return a context in which the server gives a process the share of its allocation.

        The context yields False if the allocation has no share.
        """
        ...

    def joined(self, allocation: AllocationId, pid: int, multiprocessors: int) -> None:
        """Called after an admission with the number of multiprocessors that the program reported; 0 for none."""
        ...


class AdmissionSocket:
    """The admission socket of one MPS service, with the thread that serves it.

    Args:
        path: path of the socket.
        allocation_of: returns the allocation of a process.
        admission: admits processes to the server.
    """

    def __init__(
        self,
        path: Path,
        *,
        allocation_of: Callable[[int], AllocationId | None],
        admission: Admission,
    ) -> None:
        self.path = path
        self._allocation_of = allocation_of
        self._admission = admission
        self._wasted: dict[AllocationId, float] = {}
        self._closing = threading.Event()
        path.parent.mkdir(mode=0o711, exist_ok=True)
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._listener.bind(str(path))
        path.chmod(0o666)
        self._listener.listen(128)
        self._listener.settimeout(IDLE_S)
        self._thread = threading.Thread(target=self._serve, name=f"door-{path.parent.parent.name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop admitting programs, and remove the socket."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=IDLE_S)
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                peer, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            with peer:
                try:
                    self._hear(peer)
                except (CalabashError, OSError) as error:
                    log.warning("a program was not admitted", socket=str(self.path), error=str(error))
                except Exception:
                    log.exception("a program was not admitted", socket=str(self.path))

    def _hear(self, peer: socket.socket) -> None:
        pid = peer_of(peer).pid
        allocation = self._allocation_of(pid) if pid > 0 else None
        if allocation is None:
            return
        now = time.monotonic()
        self._wasted = {name: until for name, until in self._wasted.items() if until > now}
        if allocation in self._wasted:
            return
        with self._admission.admitted(allocation, pid) as admitted:
            if not admitted:
                return
            peer.settimeout(JOIN_S)
            peer.send(b"go")
            said = b""
            with contextlib.suppress(TimeoutError):
                said = peer.recv(64)
            if not said:
                self._wasted[allocation] = time.monotonic() + PENALTY_S
        found = _SAID.fullmatch(said)
        self._admission.joined(allocation, pid, int(found[1]) if found else 0)


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
            daemon.shares.begin_admission(share)
            wrong = daemon.apply_share()
        if wrong:
            details = f"the server was set to {share.percent}% and {share.memory_mib} MiB, {wrong}"
            self._notices.report_mismatch(allocation, details)
        try:
            yield True
        finally:
            with self._lock:
                daemon.shares.end_admission()
                daemon.clients.add_admitted(pid, allocation)
                daemon.apply_share()
                self._refuse_others(allocation, share, before, daemon.read_server())

    def joined(self, allocation: AllocationId, pid: int, multiprocessors: int) -> None:
        """Report an admitted program that has more or fewer multiprocessors than its share stands for.

        Args:
            multiprocessors: the number that the program reported; 0: none.
        """
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
        """Terminate clients of other allocations that joined while the server gave ``share`` and have a smaller share.

        Args:
            before, after: states of the server before and after the admission of a program of ``allocation``.
        """
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
