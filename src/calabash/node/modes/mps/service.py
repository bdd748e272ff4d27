"""The multi-process service of one card, or of a MIG instance: its daemon, its server, its clients, and what they may have.

What is at rest is safe: whoever joins without having been let in gets the least share that anybody holds. While a program
is let in (``mps_turns``) the server gives that program's share. Faults and deaths are seen by its watch (``mps_watch``).
"""

from __future__ import annotations

import threading
from pathlib import Path

import structlog

from calabash.adapters.gpu.nvidia.mps import MpsControl
from calabash.adapters.host.processes import Process
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId
from calabash.node.modes.mps.admission import Door
from calabash.node.modes.mps.admission_queue import CardTurns
from calabash.node.modes.mps.clients import Clients
from calabash.node.modes.mps.daemon import CardDaemon
from calabash.node.modes.mps.notices import ServiceNews, ServiceTools
from calabash.node.modes.mps.shares import Share, Shares
from calabash.node.modes.mps.target import Served
from calabash.node.modes.mps.watchdog import ServiceWatch

log = structlog.get_logger(__name__)


class CardService:
    """One service. Methods may be called from any thread; all but ``hold`` and ``leave`` may take seconds."""

    def __init__(self, served: Served, directory: Path, tools: ServiceTools) -> None:
        self.served = served
        self.control = MpsControl(directory, served.uuid, tools.environment, tools.files)
        self._directory = directory
        self._tools = tools
        self._lock = threading.RLock()
        self._shares = Shares()
        self._daemon = CardDaemon(served, self.control, self._shares, Clients(tools.allocation_of))
        self._news = news = ServiceNews(tools)
        self._watch = ServiceWatch(self._daemon, news, lock=self._lock, ensure=self.ensure)
        self._turns = CardTurns(
            self._daemon, news, lock=self._lock, ensure=self.ensure, allocation_of=tools.allocation_of
        )
        self._door: Door | None = None
        self._begun = False

    @property
    def door(self) -> Path:
        """Where programs knock: alone in its directory, which containers see."""
        return self._directory / "door" / "knock"

    @property
    def daemon(self) -> Process | None:
        """The daemon that was started last, unless it was ended."""
        return self._daemon.process

    @property
    def idle(self) -> bool:
        """Whether nobody holds anything of it."""
        return self._shares.idle

    @property
    def serves(self) -> bool:
        """Whether programs that come are served, as far as that has been seen."""
        return self._begun and self._watch.well and self._daemon.serving

    def holds(self, allocation: AllocationId) -> bool:
        """Whether it may have something of it."""
        return self._shares.of(allocation) is not None

    def hold(self, allocation: AllocationId, share: Share) -> None:
        """From now on it may have this."""
        self._shares.hold(allocation, share)

    def leave(self, allocation: AllocationId) -> None:
        """It may have nothing any more."""
        self._shares.leave(allocation)

    def resume(self) -> None:
        """An earlier pool has begun it: it is to be there."""
        self._begun = True

    def adopt(self, daemon: Process | None) -> Process | None:
        """Take over the daemon of an earlier pool; None: one that it did not live to write down. The one that there is then;
        what lives here without it is ended."""
        with self._lock:
            if daemon is not None:
                self._daemon.adopt(daemon)
            return self._daemon.adopt_unknown()

    def ensure(self) -> None:
        """Daemon, server and door are there, and the server gives the least share. Raises CalabashError."""
        with self._lock:
            self._daemon.serve()
            if self._door is None:
                self._door = Door(
                    self.door,
                    allocation_of=self._tools.allocation_of,
                    admission=self._turns.admitted,
                    joined=self._turns.joined,
                )
            self._begun = True

    def look(self) -> None:
        """Several times a second: is the daemon there, does the server serve, who are its clients."""
        if self._begun:
            self._watch.look()
            self.report()

    def report(self) -> None:
        """Tell the health of the card what has happened. Not to be called under a lock."""
        self._news.report()

    def verify(self) -> list[str]:
        """Once a second: the server gives what it should; what was mended."""
        return self._watch.verify()

    def stop(self) -> None:
        """End it and whoever is still a client; nobody holds anything of it."""
        self.release()
        with self._lock:
            self._watch.tell_unseen()
            try:
                if self._daemon.running:
                    self.control.quit()
            except CalabashError as error:
                log.warning("the MPS daemon did not quit", served=self.served.name, error=error.message)
            self._daemon.end()
            self._daemon.clients.clear()

    def release(self) -> None:
        """The pool stops and others go on: only the door is closed."""
        door, self._door = self._door, None
        if door is not None:
            door.close()
