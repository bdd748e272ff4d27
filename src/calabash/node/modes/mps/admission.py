"""Admission socket of an MPS service, at which programs ask for admission and are admitted one at a time.

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
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import structlog

from calabash.adapters.host.processes import peer_of
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId

JOIN_S = 5.0  # a driver that initialises a device needs seconds
IDLE_S = 1.0
PENALTY_S = 60.0
_SAID = re.compile(rb"sms (\d{1,6})")

Admission = Callable[[AllocationId, int], AbstractContextManager[bool]]

log = structlog.get_logger(__name__)


class AdmissionSocket:
    """The admission socket of one MPS service, with the thread that serves it.

    Args:
        path: path of the socket.
        allocation_of: returns the allocation of a process.
        admission: context in which the server gives the share of an allocation to a process; False if it has no share.
        joined: called after an admission with the number of multiprocessors that the program reported; 0 for none.
    """

    def __init__(
        self,
        path: Path,
        *,
        allocation_of: Callable[[int], AllocationId | None],
        admission: Admission,
        joined: Callable[[AllocationId, int, int], None],
    ) -> None:
        self.path = path
        self._allocation_of = allocation_of
        self._admission = admission
        self._joined = joined
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
        with self._admission(allocation, pid) as admitted:
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
        self._joined(allocation, pid, int(found[1]) if found else 0)
