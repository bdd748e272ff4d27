"""The daemon of a multi-process service and the one server it has: how they come, what they are told, how they end."""

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
LOOK_S = 0.01
AGAIN_S = 0.5  # a server that was asked for and is not there by then is asked for again
T = TypeVar("T")
NOTHING = Share(percent=0, memory_mib=0)


class CardDaemon:
    """One daemon. Not safe for threads by itself."""

    def __init__(self, served: Served, control: MpsControl, shares: Shares, clients: Clients) -> None:
        self.served = served
        self.control = control
        self.shares = shares
        self.clients = clients
        self.process: Process | None = None
        self.server: Process | None = None
        self.given = NOTHING  # by the server, as far as we know
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether it lives."""
        return self.process is not None and alive(self.process)

    @property
    def serving(self) -> bool:
        """Whether it and its server live."""
        return self.running and self.server is not None and alive(self.server)

    @property
    def server_pid(self) -> int:
        """0: it has none."""
        return self.server.pid if self.server is not None else 0

    def adopt(self, process: Process) -> None:
        """Take over the daemon of an earlier pool."""
        self.process = process
        self.control.skip_log()

    def start(self) -> None:
        """Begin anew, with the share that the next server starts with. Raises CalabashError."""
        self.end()  # whoever else lives in this directory would answer in place of the one that is started here
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
                        hint=f"look at {self.control.log / 'control.log'}",
                    ) from error
                time.sleep(LOOK_S)

    def serve(self) -> None:
        """Have a daemon, and a server that gives the least share: what is not there is started, also again. Raises
        CalabashError when none comes up."""
        deadline = time.monotonic() + START_S
        ask_at_s = 0.0
        while not self._ask(self._rests):
            now_s = time.monotonic()
            if now_s > deadline:
                raise CalabashError(
                    f"the MPS server of {self.served.name} does not come up within {START_S:g} s",
                    reason=Reason.TIMEOUT,
                    hint=f"look at {self.control.log / 'server.log'}",
                )
            if not self.running:
                self.start()
            elif now_s >= ask_at_s and not self._ask(self.control.servers):
                self._ask(partial(self.control.start_server, os.geteuid()))
                ask_at_s = now_s + AGAIN_S
            else:
                time.sleep(LOOK_S)

    def _rests(self) -> bool:
        """Whether there is a server that answers; it is ours then, and gives the least share unless somebody is let in."""
        server = self.server_pid if self.serving else 0
        if not server and self.running:
            server = next(iter(self.control.servers()), 0)
        found = identify(server) if server and self._answers(server) else None
        if found is None:
            return False
        if found != self.server:
            self.server, self.given = found, NOTHING
        self.rest()
        return True

    def _ask(self, question: Callable[[], T]) -> T | None:
        """None where the daemon has died meanwhile. Raises CalabashError where it lives and does not answer."""
        try:
            return question()
        except CalabashError as error:
            if self.running and error.reason is not Reason.NOT_FOUND:
                raise
            return None

    def lost_server(self) -> None:
        """It is gone, and its clients with it."""
        self.server, self.given = None, NOTHING
        self.clients.clear()

    def adopt_unknown(self) -> Process | None:
        """Take over the daemon that a pool started and did not live to write down: the one there is. What else lives here
        is ended: a server whose daemon has died serves nobody and keeps the next one from the card."""
        found = [] if self.running else self.control.daemons()
        if found:
            self.adopt(found[0])
        for process in self.control.processes():
            if process != self.process and (self.process is None or parent_of(process.pid) != self.process.pid):
                send_signal(process, signal.SIGKILL)
        return self.process

    def end(self) -> None:
        """And its servers: one without a daemon serves nobody and keeps the next one from the card."""
        for process in (self.process, self.server, *self.control.processes()):
            if process is not None:
                send_signal(process, signal.SIGKILL)
        if self._child is not None:
            self._child.wait()
        self._child = self.process = self.server = None
        self.given = NOTHING

    def look(self) -> ServerState | None:
        """Its server and who its clients are; None when it is not there."""
        look = self.control.server_state(self.server_pid)
        if look is not None:
            self.clients.seen(look.clients)
        return look

    def give(self) -> str:
        """Tell the server what is wanted, and ask it back: "" when it says the same."""
        wanted = self.shares.wanted()
        wrong = self.control.set_share(
            self.server_pid,
            percent=wanted.percent,
            memory_mib=wanted.memory_mib,
            also_next=self.shares.window is None,
        )
        self.given = wanted
        return wrong

    def rest(self) -> None:
        """Nobody is being let in: the server gives the least share."""
        if self.given != self.shares.wanted():
            self.give()

    def _answers(self, server: int) -> bool:
        look = self.control.server_state(server)
        return look is not None and look.status is not ServerStatus.INITIALIZING
