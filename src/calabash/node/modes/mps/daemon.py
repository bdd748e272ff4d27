"""MPS control daemon with its server: start, adoption, end, the shares that the server gives, and its clients."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from calabash.adapters.gpu.nvidia.mps import MpsControl, ServerState, ServerStatus
from calabash.adapters.host.processes import Process, alive, identify, parent_of, send_signal
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.node.modes.mps.target import Served


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Compute and memory that one allocation may use."""

    percent: int
    memory_mib: int


class Shares:
    """The shares of one service. ``hold`` and ``leave`` may be called from any thread at any time."""

    def __init__(self) -> None:
        self._held: dict[AllocationId, Share] = {}
        self._admitting: Share | None = None  # share of the program that is being admitted

    @property
    def idle(self) -> bool:
        """True if no allocation holds a share."""
        return not self._held

    def hold(self, allocation: AllocationId, share: Share) -> None:
        """Set the share of an allocation."""
        self._held[allocation] = share

    def leave(self, allocation: AllocationId) -> None:
        """Remove the share of an allocation."""
        self._held.pop(allocation, None)

    @property
    def is_admitting(self) -> bool:
        """True while a program is being admitted."""
        return self._admitting is not None

    def begin_admission(self, share: Share) -> None:
        """Set the share of the program that is being admitted."""
        self._admitting = share

    def end_admission(self) -> None:
        """Record that no program is being admitted any more."""
        self._admitting = None

    def share_of(self, allocation: AllocationId) -> Share | None:
        """Return the share of an allocation; None if it has none."""
        return self._held.get(allocation)

    def wanted(self) -> Share:
        """Return the share that the server should give now: that of the program being admitted, otherwise the smallest."""
        if self._admitting is not None:
            return self._admitting
        shares = list(self._held.values()) or [Share(percent=1, memory_mib=1)]
        return Share(percent=min(s.percent for s in shares), memory_mib=min(s.memory_mib for s in shares))


ADMITTED_MAX = 1024
RECENT_S = 2.0  # several polls, also on a busy machine


class Clients:
    """Clients of one MPS service by PID. Not thread-safe."""

    def __init__(self, allocation_of: Callable[[int], AllocationId | None]) -> None:
        self._allocation_of = allocation_of
        self._seen: dict[int, tuple[AllocationId | None, float]] = {}
        self._admitted: dict[int, AllocationId] = {}

    def add_admitted(self, pid: int, allocation: AllocationId) -> None:
        """Record a process that was admitted."""
        self._admitted = dict(list(self._admitted.items())[-ADMITTED_MAX:]) | {pid: allocation}
        self._seen[pid] = (allocation, time.monotonic())

    def update(self, pids: Iterable[int]) -> None:
        """Record the clients that the server reports now."""
        now = time.monotonic()
        self._drop_old(now)
        for pid in pids:
            known = self._seen.get(pid)
            owner = known[0] if known is not None and known[0] is not None else self._allocation_of(pid)
            self._seen[pid] = (owner, now)

    def clear(self) -> None:
        """Remove all clients. Admitted PIDs stay known."""
        self._seen.clear()

    def owner_of(self, pid: int) -> AllocationId | None:
        """Return the allocation of a present or former client; None if it is not known."""
        known = self._seen.get(pid)
        return (known[0] if known is not None else None) or self._admitted.get(pid)

    def by_allocation(self) -> dict[AllocationId, list[int]]:
        """Return the PIDs of the clients seen in the last ``RECENT_S`` by allocation."""
        self._drop_old(time.monotonic())
        found: dict[AllocationId, list[int]] = {}
        for pid, (owner, _) in self._seen.items():
            if owner is not None:
                found.setdefault(owner, []).append(pid)
        return found

    def _drop_old(self, now: float) -> None:
        self._seen = {pid: entry for pid, entry in self._seen.items() if now - entry[1] < RECENT_S}


START_S = 10.0
POLL_S = 0.01
AGAIN_S = 0.5  # interval at which the daemon is asked again to start a server
T = TypeVar("T")
NOTHING = Share(percent=0, memory_mib=0)


class CardDaemon:
    """The MPS control daemon of one device or MIG instance, with its server. Not thread-safe."""

    def __init__(self, served: Served, control: MpsControl, shares: Shares, clients: Clients) -> None:
        self.served = served
        self.control = control
        self.shares = shares
        self.clients = clients
        self.process: Process | None = None
        self.server: Process | None = None
        self.applied = NOTHING  # the share that was set on the server last
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """True if the daemon process is alive."""
        return self.process is not None and alive(self.process)

    @property
    def serving(self) -> bool:
        """True if the daemon and its server are alive."""
        return self.running and self.server is not None and alive(self.server)

    @property
    def server_pid(self) -> int:
        """PID of the server; 0 if there is none."""
        return self.server.pid if self.server is not None else 0

    def adopt(self, process: Process) -> None:
        """Use the daemon that an earlier pool started; its log is read from the present end on."""
        self.process = process
        self.control.skip_log()

    def start(self) -> None:
        """End all processes of the service, and start a daemon whose server will give the default share.

        Raises CalabashError if the daemon does not answer within ``START_S``.
        """
        self.end()  # another daemon of this directory would answer instead of the new one
        self._child = self.control.start(multiuser=os.geteuid() == 0)
        self.process = identify(self._child.pid)
        deadline = time.monotonic() + START_S
        while True:
            try:
                rest = self.shares.wanted()
                self.control.set_defaults(percent=rest.percent, memory_mib=rest.memory_mib)
                return
            except CalabashError as error:
                if self._child.poll() is not None or time.monotonic() > deadline:
                    self.end()
                    raise CalabashError(
                        f"the MPS daemon of {self.served.name} does not start: {error.message}",
                        reason=error.reason,
                        hint=f"see {self.control.log / 'control.log'}",
                    ) from error
                time.sleep(POLL_S)

    def serve(self) -> None:
        """Start the daemon and the server if necessary, and set the default share.

        Raises:
            CalabashError: TIMEOUT: no server answers within ``START_S``; or the daemon does not start.
        """
        deadline = time.monotonic() + START_S
        ask_at_s = 0.0
        while not self._ask(self._adopt_server):
            now_s = time.monotonic()
            if now_s > deadline:
                raise CalabashError(
                    f"the MPS server of {self.served.name} does not start within {START_S:g} s",
                    reason=Reason.TIMEOUT,
                    hint=f"see {self.control.log / 'server.log'}",
                )
            if not self.running:
                self.start()
            elif now_s >= ask_at_s and not self._ask(self.control.servers):
                self._ask(partial(self.control.start_server, os.geteuid()))
                ask_at_s = now_s + AGAIN_S
            else:
                time.sleep(POLL_S)

    def _adopt_server(self) -> bool:
        """Return True if a server answers; adopt it, and set the default share unless a program is being admitted."""
        server = self.server_pid if self.serving else 0
        if not server and self.running:
            server = next(iter(self.control.servers()), 0)
        found = identify(server) if server and self._answers(server) else None
        if found is None:
            return False
        if found != self.server:
            self.server, self.applied = found, NOTHING
        self.ensure_share()
        return True

    def _ask(self, question: Callable[[], T]) -> T | None:
        """Return the result of a query of the daemon; None if the query failed because the daemon has died.

        Raises CalabashError if the query failed although the daemon is alive.
        """
        try:
            return question()
        except CalabashError as error:
            if self.running and error.reason is not Reason.NOT_FOUND:
                raise
            return None

    def lost_server(self) -> None:
        """Record that the server and its clients have ended."""
        self.server, self.applied = None, NOTHING
        self.clients.clear()

    def adopt_unknown(self) -> Process | None:
        """Adopt a running daemon of this service that is not recorded, as after a crash; return the daemon, if any.

        Other processes of the service are killed, except the daemon's children: a server whose daemon has died serves
        no program and blocks the device for the next one.
        """
        found = [] if self.running else self.control.daemons()
        if found:
            self.adopt(found[0])
        for process in self.control.processes():
            if process != self.process and (self.process is None or parent_of(process.pid) != self.process.pid):
                send_signal(process, signal.SIGKILL)
        return self.process

    def end(self) -> None:
        """Kill the daemon and all servers of this directory: a server without a daemon would block the device."""
        for process in (self.process, self.server, *self.control.processes()):
            if process is not None:
                send_signal(process, signal.SIGKILL)
        if self._child is not None:
            self._child.wait()
        self._child = self.process = self.server = None
        self.applied = NOTHING

    def read_server(self) -> ServerState | None:
        """Read the state and the clients of the server; None if there is no server."""
        state = self.control.server_state(self.server_pid)
        if state is not None:
            self.clients.update(state.clients)
        return state

    def apply_share(self) -> str:
        """Set the wanted share on the server and read it back. Return the difference as text; "" if there is none."""
        wanted = self.shares.wanted()
        wrong = self.control.set_share(
            self.server_pid,
            percent=wanted.percent,
            memory_mib=wanted.memory_mib,
            also_next=not self.shares.is_admitting,
        )
        self.applied = wanted
        return wrong

    def ensure_share(self) -> None:
        """Set the wanted share on the server if another one was set last."""
        if self.applied != self.shares.wanted():
            self.apply_share()

    def _answers(self, server: int) -> bool:
        state = self.control.server_state(server)
        return state is not None and state.status is not ServerStatus.INITIALIZING
