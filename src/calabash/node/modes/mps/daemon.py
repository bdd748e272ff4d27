"""MPS control daemon and its server: start, adoption, setting of shares, and end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from calabash.adapters.gpu.nvidia.mps import MpsControl, ServerState, ServerStatus
from calabash.adapters.host.processes import Process, alive, identify, parent_of, send_signal
from calabash.model.errors import CalabashError, Reason
from calabash.node.modes.mps.clients import Clients
from calabash.node.modes.mps.shares import Share, Shares
from calabash.node.modes.mps.target import Served

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
        """End all processes of the service and start a daemon with the default share of its next server.

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
        """Return the result of a query of the daemon; None if the daemon has died. Raises CalabashError if it is alive."""
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
        """Adopt a running daemon of this directory that is not recorded, as after a crash, and kill all other processes.

        A server whose daemon has died serves no program and blocks the device for the next one.
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
            also_next=self.shares.window is None,
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
