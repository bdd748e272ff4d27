"""The multi-process service of one card: its daemon, its server, its clients, and what they may have.

What is at rest is safe: whoever joins without having been let in gets the least share that anybody holds. While a program
is let in the server gives that program's share; the lock is not held meanwhile, so a fault is seen whoever lingers.

A fatal fault of one client is everybody's. The server says so by itself (FAULT) and takes nobody until all that were hit
have gone; those that do not go in a second are parted from it by force, and the next program finds a new server.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from calabash.agent.modes.mps_clients import Clients
from calabash.agent.modes.mps_door import Door
from calabash.model.device import Device
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.seams.gpu.mps import MpsControl, ServerLook, ServerStatus
from calabash.seams.host.processes import Process, alive, identify, send_signal

START_S = 10.0
PART_AFTER_S = 1.0  # those that a fault hit may leave by themselves for so long
RETRY_S, RETRY_MAX_S = 1.0, 30.0  # what does not start is tried again, ever less often
SMS_TOLERANCE = 2  # the driver rounds to what the chip can divide

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one allocation may have."""

    percent: int
    memory_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTools:
    """What a service may use of its pool: who a process is, an event (kind, reason, allocation, message), and what an
    allocation's user is to know when it is asked about."""

    allocation_of: Callable[[int], AllocationId | None]
    tell: Callable[[str, str, str, str], None]
    environment: Mapping[str, str]
    notes: Callable[[AllocationId, str], None]


class CardService:
    """One card. Methods may be called from any thread; all but ``hold`` and ``leave`` may take seconds."""

    def __init__(self, device: Device, directory: Path, tools: ServiceTools) -> None:
        self.device = device
        self._directory = directory
        self.control = MpsControl(directory, device.uuid, tools.environment)
        self._tools = tools
        self._lock = threading.RLock()
        self._shares: dict[AllocationId, Share] = {}
        self._child: subprocess.Popen[bytes] | None = None
        self.daemon: Process | None = None
        self._server: Process | None = None
        self._door: Door | None = None
        self._clients = Clients(tools.allocation_of)
        self._window: Share | None = None  # of whoever is being let in
        self._given = Share(percent=0, memory_mib=0)  # by the server; 0: not set
        self._faulted_at = 0.0
        self._begun = False
        self._down = False
        self._retry_s, self._retry_at = RETRY_S, 0.0

    @property
    def door(self) -> Path:
        """Where programs knock."""
        return self._directory / "door"

    @property
    def running(self) -> bool:
        """Whether its daemon lives."""
        return self.daemon is not None and alive(self.daemon)

    @property
    def idle(self) -> bool:
        """Whether nobody holds anything of it."""
        return not self._shares

    def hold(self, allocation: AllocationId, share: Share) -> None:
        """From now on it may have this."""
        self._shares[allocation] = share

    def leave(self, allocation: AllocationId) -> None:
        """It may have nothing any more."""
        self._shares.pop(allocation, None)

    def resume(self) -> None:
        """An earlier pool has begun it: it is to be there."""
        self._begun = True

    def adopt(self, daemon: Process) -> None:
        """Take over the daemon of an earlier pool."""
        self.daemon = daemon
        self.control.forget_log()

    def ensure(self) -> None:
        """Daemon, server and door are there, and the server gives the least share. Raises CalabashError."""
        with self._lock:
            if not self.running:
                self._start_daemon()
            self._serving()
            self._give()
            if self._door is None:
                self._door = Door(
                    self.door, allocation_of=self._tools.allocation_of, admission=self.admitted, joined=self._joined
                )
            self._begun = True

    def stop(self) -> None:
        """End it and whoever is still a client; nobody holds anything of it."""
        door, self._door = self._door, None
        if door is not None:
            door.close()
        with self._lock:
            culprit = self.control.culprit()
            if culprit and not self._faulted_at:  # all that it hit have left by now
                self._tell_fault(culprit)
            try:
                if self.running:
                    self.control.quit()
            except CalabashError as error:
                log.warning("the MPS daemon did not quit", device=self.device.index, error=error.message)
            self._end_daemon()
            self._clients.clear()

    def release(self) -> None:
        """The pool stops and others go on: only the door is closed."""
        door, self._door = self._door, None
        if door is not None:
            door.close()

    # -- admission ---------------------------------------------------------------------------------------------

    @contextmanager
    def admitted(self, allocation: AllocationId, pid: int) -> Iterator[bool]:
        """As long as this is entered the server gives the share of this allocation; False: it holds none."""
        share = self._shares.get(allocation)
        if share is None:
            yield False
            return
        with self._lock:
            self.ensure()
            before = self._looked(self._server_pid())
            self._clients.let_in(pid, allocation)
            self._window = share
            wrong = self._give()
        if wrong:
            self._unverified(allocation, f"the server was told {share.percent}% and {share.memory_mib} MiB, {wrong}")
        try:
            yield True
        finally:
            with self._lock:
                self._window = None
                self._clients.let_in(pid, allocation)
                self._give()
                after = self._looked(self._server_pid())
                self._refuse_others(allocation, share, before, after)

    def _refuse_others(
        self, allocation: AllocationId, share: Share, before: ServerLook | None, after: ServerLook | None
    ) -> None:
        """Whoever slipped in while the share was another's is parted from the card."""
        if before is None or after is None:
            return
        for pid in set(after.clients) - set(before.clients):
            whose = self._tools.allocation_of(pid)
            if whose == allocation or identify(pid) is None:
                continue
            own = self._shares.get(whose) if whose is not None else None
            if own is not None and own.percent >= share.percent and own.memory_mib >= share.memory_mib:
                continue
            self.control.terminate(after.pid, pid)
            self._tell(
                "mps_slipped_in", Reason.NOT_PERMITTED, whose or "",
                f"client {pid} joined while the share of allocation {allocation} was set, and was parted from the card",
            )  # fmt: skip

    def _joined(self, allocation: AllocationId, pid: int, multiprocessors: int) -> None:
        share = self._shares.get(allocation)
        if share is None or multiprocessors == 0:
            return
        expected = max(1, self.device.multiprocessor_count * share.percent // 100)
        if multiprocessors > expected + SMS_TOLERANCE or multiprocessors < expected - SMS_TOLERANCE:
            self._unverified(
                allocation,
                f"program {pid} sees {multiprocessors} multiprocessors of {self.device.multiprocessor_count},"
                f" its share of {share.percent}% is {expected}",
            )

    # -- watching ----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Several times a second: is the daemon there, does the server serve, who are its clients."""
        if self.idle or not self._begun or time.monotonic() < self._retry_at or not self._lock.acquire(blocking=False):
            return  # whoever has it looks by itself
        try:
            if not self.running:
                self._restart()
                return
            look = self._looked(self._server.pid) if self._server is not None and alive(self._server) else None
            culprit = self.control.culprit()  # all that were hit may have gone by now, and the server serves again
            if look is None:
                self._server_gone()
            elif look.status is ServerStatus.FAULT or culprit:
                self._fault(look, culprit)
            elif self._faulted_at:
                self._back()
        finally:
            self._lock.release()

    def verify(self) -> list[str]:
        """Once a second: the server gives what it should; what was mended."""
        with self._lock:
            if self.idle or not self.running or self._server is None or self._faulted_at:
                return []
            wanted, said = self._wanted(), self.control.share(self._server.pid, self.device.uuid)
            if said == (wanted.percent, wanted.memory_mib):
                return []
            known, wrong = self._given == wanted, self._give()
            if not known and not wrong:
                return []  # somebody came or left
            gave = f"the MPS server of device {self.device.index} gave {said[0]:g}% and {said[1]} MiB to whoever comes"
            return [f"{gave} and was told {wanted.percent}% and {wanted.memory_mib} MiB again{wrong and ', ' + wrong}"]

    def _restart(self) -> None:
        hit = self._clients.by_allocation()
        self._end_daemon()
        self._clients.clear()
        if not self._down:
            self._tell_hit("mps_daemon_died", hit, "the MPS daemon died")
        self._mend(f"the MPS daemon of device {self.device.index} runs again")

    def _server_gone(self) -> None:
        hit, first = self._clients.by_allocation(), self._server is None
        self._server = None
        self._clients.clear()
        if not first and not self._faulted_at:
            self._tell_hit("mps_server_died", hit, "the MPS server died")
        self._mend("" if first and not self._down else f"the MPS server of device {self.device.index} runs again")

    def _mend(self, news: str) -> None:
        """In a thread of its own: a card takes seconds to start, and the other cards are looked at meanwhile."""
        self._down = True
        self._retry_at = time.monotonic() + self._retry_s
        threading.Thread(target=self._mended, args=(news,), name=f"mps-{self.device.index}", daemon=True).start()

    def _mended(self, news: str) -> None:
        with self._lock:
            if self.idle:
                return
            try:
                self.ensure()
            except CalabashError as error:
                log.error("the MPS service does not come back", device=self.device.index, error=error.message)
                self._retry_at = time.monotonic() + self._retry_s
                self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
                return
            self._down, self._retry_s, self._retry_at = False, RETRY_S, 0.0
            if self._faulted_at:
                self._back()
            elif news:
                self._tell("mps_back", "", "", news)

    def _fault(self, look: ServerLook, culprit: int) -> None:
        now = time.monotonic()
        if not self._faulted_at:
            self._faulted_at = now
            self._tell_fault(culprit)
        elif look.status is ServerStatus.FAULT and now - self._faulted_at > PART_AFTER_S:
            self.control.ask(f"shutdown_server {look.pid} -f")
            self._server_gone()

    def _tell_fault(self, culprit: int) -> None:
        whose = self._clients.whose(culprit)
        by = f"allocation {whose} (process {culprit})" if whose else f"process {culprit}" if culprit > 0 else "a client"
        self._tell_hit("mps_fault", self._clients.by_allocation(), f"a fatal fault of {by}")

    def _back(self) -> None:
        took_s, self._faulted_at = time.monotonic() - self._faulted_at, 0.0
        self._clients.clear()
        self._give()
        self._tell(
            "mps_back", "", "", f"the MPS server of device {self.device.index} serves again after {took_s:.1f} s"
        )

    # -- inside ------------------------------------------------------------------------------------------------

    def _start_daemon(self) -> None:
        self._end_daemon()
        self._child = self.control.start(multiuser=os.geteuid() == 0)
        self.daemon = identify(self._child.pid)
        deadline = time.monotonic() + START_S
        while True:
            try:
                rest = self._wanted()
                self.control.set_defaults(self.device.uuid, percent=rest.percent, memory_mib=rest.memory_mib)
                return
            except CalabashError as error:
                if self._child.poll() is not None or time.monotonic() > deadline:
                    self._end_daemon()
                    raise CalabashError(
                        f"the MPS daemon of device {self.device.index} does not start: {error.message}",
                        reason=error.reason,
                        hint=f"look at {self.control.log / 'control.log'}",
                    ) from error
                time.sleep(0.01)

    def _end_daemon(self) -> None:
        """And its server: one without a daemon serves nobody and keeps the next one from the card."""
        for process in (self.daemon, self._server):
            if process is not None:
                send_signal(process, signal.SIGKILL)
        if self._child is not None:
            self._child.wait()
        self._child = self.daemon = self._server = None
        self._given = Share(percent=0, memory_mib=0)

    def _serving(self) -> ServerLook:
        """The server, started when there is none. Raises CalabashError when it does not come up."""
        deadline = time.monotonic() + START_S
        asked = False
        while True:
            servers = self.control.servers()
            look = self.control.look(servers[0]) if servers else None
            if look is not None and look.status is not ServerStatus.INITIALIZING:
                self._server = identify(look.pid)
                return look
            if not servers and not asked:
                self.control.start_server(os.geteuid())
                asked = True
            if time.monotonic() > deadline:
                raise CalabashError(
                    f"the MPS server of device {self.device.index} does not come up within {START_S:g} s",
                    reason=Reason.TIMEOUT,
                    hint=f"look at {self.control.log / 'server.log'}",
                )
            time.sleep(0.01)

    def _server_pid(self) -> int:
        return self._server.pid if self._server is not None else 0

    def _looked(self, server: int) -> ServerLook | None:
        look = self.control.look(server)
        if look is not None:
            self._clients.seen(look.clients)
        return look

    def _wanted(self) -> Share:
        """What the server is to give now: to whoever is let in its own, else the least of all."""
        if self._window is not None:
            return self._window
        shares = list(self._shares.values()) or [Share(percent=1, memory_mib=1)]
        return Share(percent=min(s.percent for s in shares), memory_mib=min(s.memory_mib for s in shares))

    def _give(self) -> str:
        """Tell the server, and ask it back: "" when it says the same."""
        wanted, server = self._wanted(), self._server_pid()
        if self._window is None:
            self.control.set_defaults(self.device.uuid, percent=wanted.percent, memory_mib=wanted.memory_mib)
        wrong = self.control.set_share(server, self.device.uuid, percent=wanted.percent, memory_mib=wanted.memory_mib)
        self._given = wanted
        return wrong

    def _tell_hit(self, kind: str, hit: Mapping[AllocationId, list[int]], cause: str) -> None:
        for allocation, pids in hit.items():
            message = (
                f"{cause} on device {self.device.index} hit its client{'s' if len(pids) > 1 else ''}"
                f" {', '.join(map(str, sorted(pids)))}: every CUDA call of theirs fails, programs that start are served"
            )
            self._tools.notes(allocation, message)
            self._tell(kind, Reason.NEIGHBOUR_FAULT, allocation, message)
        if not hit:
            self._tell(kind, Reason.NEIGHBOUR_FAULT, "", f"{cause} on device {self.device.index} hit nobody")

    def _unverified(self, allocation: AllocationId, how: str) -> None:
        self._tools.notes(allocation, f"its share is not what the device reports: {how}")
        self._tell("mps_unverified", Reason.UNVERIFIED, allocation, how)

    def _tell(self, kind: str, reason: str, allocation: str, message: str) -> None:
        self._tools.tell(kind, reason, allocation, message)
