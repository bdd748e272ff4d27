"""The daemon of a card's multi-process service and the one server it has: how they come, what they are told, how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import time

from calabash.agent.modes.mps_clients import Clients
from calabash.agent.modes.mps_shares import Share, Shares
from calabash.model.device import Device
from calabash.model.errors import CalabashError, Reason
from calabash.seams.gpu.mps import MpsControl, ServerLook, ServerStatus
from calabash.seams.host.processes import Process, alive, identify, send_signal

START_S = 10.0


class CardDaemon:
    """One daemon. Not safe for threads by itself."""

    def __init__(self, device: Device, control: MpsControl, shares: Shares, clients: Clients) -> None:
        self.device = device
        self.control = control
        self.shares = shares
        self.clients = clients
        self.process: Process | None = None
        self.server: Process | None = None
        self.given = Share(percent=0, memory_mib=0)  # by the server; 0: not set
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether it lives."""
        return self.process is not None and alive(self.process)

    @property
    def server_pid(self) -> int:
        """0: it has none."""
        return self.server.pid if self.server is not None else 0

    def adopt(self, process: Process) -> None:
        """Take over the daemon of an earlier pool."""
        self.process = process
        self.control.forget_log()

    def start(self) -> None:
        """Begin anew, with the share that the next server starts with. Raises CalabashError."""
        self.end()
        self._child = self.control.start(multiuser=os.geteuid() == 0)
        self.process = identify(self._child.pid)
        deadline = time.monotonic() + START_S
        while True:
            try:
                rest = self.shares.wanted()
                self.control.set_defaults(self.device.uuid, percent=rest.percent, memory_mib=rest.memory_mib)
                return
            except CalabashError as error:
                if self._child.poll() is not None or time.monotonic() > deadline:
                    self.end()
                    raise CalabashError(
                        f"the MPS daemon of device {self.device.index} does not start: {error.message}",
                        reason=error.reason,
                        hint=f"look at {self.control.log / 'control.log'}",
                    ) from error
                time.sleep(0.01)

    def serve(self) -> None:
        """Have a server, started when there is none. Raises CalabashError when it does not come up."""
        deadline = time.monotonic() + START_S
        asked = False
        while True:
            servers = self.control.servers()
            look = self.control.look(servers[0]) if servers else None
            if look is not None and look.status is not ServerStatus.INITIALIZING:
                self.server = identify(look.pid)
                return
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

    def end(self) -> None:
        """And its server: one without a daemon serves nobody and keeps the next one from the card."""
        for process in (self.process, self.server):
            if process is not None:
                send_signal(process, signal.SIGKILL)
        if self._child is not None:
            self._child.wait()
        self._child = self.process = self.server = None
        self.given = Share(percent=0, memory_mib=0)

    def look(self) -> ServerLook | None:
        """Its server and who its clients are; None when it is not there."""
        look = self.control.look(self.server_pid)
        if look is not None:
            self.clients.seen(look.clients)
        return look

    def give(self) -> str:
        """Tell the server what is wanted, and ask it back: "" when it says the same."""
        wanted = self.shares.wanted()
        percent, memory_mib = wanted.percent, wanted.memory_mib
        if self.shares.window is None:
            self.control.set_defaults(self.device.uuid, percent=percent, memory_mib=memory_mib)
        wrong = self.control.set_share(self.server_pid, self.device.uuid, percent=percent, memory_mib=memory_mib)
        self.given = wanted
        return wrong
