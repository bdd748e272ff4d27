"""The controller of the pool's networks as a process beside it, and in a network of namespaces who keeps the appliances of
its gateway hosts: both run while ``network.toml`` is there. The keeper of fabrics for RDMA likewise, with ``fabric.toml``.

Theory of operation. A thread looks at the files every second. When it comes, the processes are started; when it changes or
goes, they are ended; one that dies is started again, after a pause that doubles while it keeps dying. They hold nothing
that is not in the databases, so that ending them costs nothing. Their standard input stays open: that it ends
tells them that the pool is gone, SIGKILL included.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import structlog

from calabash.adapters.host.children import AUTHORITIES, PACKAGES, start_module
from calabash.controllers.fabric.main import FABRIC_FILE
from calabash.controllers.networks.settings import NETWORK_FILE, read_connection
from calabash.model.errors import CalabashError
from calabash.platform.http.child_processes import RestartPause, end

LOOK_S = 1.0

log = structlog.get_logger(__name__)


class KeptProcess:
    """A process that is to run.

    Args:
        what: it is called so in the log.
        module: the module that it runs.
        words: its arguments.
    """

    def __init__(self, what: str, module: str, *words: str) -> None:
        self._what, self._module, self._words = what, module, words
        self._process: subprocess.Popen[bytes] | None = None
        self._due_s = 0.0
        self._pause = RestartPause()

    def keep(self) -> None:
        """Start it where it does not run, unless it died a moment ago."""
        if self._process is not None and self._process.poll() is not None:
            code = self._process.returncode
            if self._process.stdin:
                self._process.stdin.close()
            self._process = None
            pause_s = self._pause.after_death()
            self._due_s = time.monotonic() + pause_s
            log.warning(f"the {self._what} ended and will be started again", code=code, pause_s=pause_s)
        if self._process is None and time.monotonic() >= self._due_s:
            self._pause.begun()
            self._process = start_module(
                self._module,
                *self._words,
                inherit=(*AUTHORITIES, *PACKAGES),
                stdin=subprocess.PIPE,
                new_session=True,  # what is typed at the pool's terminal is not for it
            )
            log.info(f"the {self._what} is started", pid=self._process.pid)

    def end(self, why: str) -> None:
        if self._process is not None:
            log.info(f"the {self._what} is ended", why=why)
            end(self._process)
            self._process = None


class FollowedFile:
    """Processes that run while a file is there, and as it says.

    Args:
        wanted: what is to run now; asked again when the file has changed.
    """

    def __init__(self, path: Path, wanted: Callable[[], tuple[KeptProcess, ...]]) -> None:
        self._path, self._wanted = path, wanted
        self._known: tuple[int, int, int] | None = None
        self._kept: tuple[KeptProcess, ...] = ()

    def look(self) -> None:
        """Start what is to run and does not, end what is not to."""
        file = self._mark()
        if file != self._known:
            self.end("its settings changed")
            self._kept = self._wanted() if file is not None else ()
        self._known = file
        for process in self._kept:
            process.keep()

    def end(self, why: str) -> None:
        for process in self._kept:
            process.end(why)
        self._kept = ()

    def _mark(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


class NetworkKeeper:
    """The network controller of one pool, what keeps appliances in a network of namespaces, and what keeps fabrics.

    Args:
        home: the pool's.
        fabric: whether fabrics are kept while ``fabric.toml`` is there.
    """

    def __init__(self, home: Path, *, fabric: bool = False) -> None:
        self._home = home
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="network controller", daemon=True)
        self._common = ("--home", str(home.absolute()), "--supervised")
        self._files = [FollowedFile(home / NETWORK_FILE, self._controllers)]
        if fabric:
            self._files.append(FollowedFile(home / FABRIC_FILE, self._fabrics))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes; what is in OVN and on fabrics, and what runs on gateway hosts, stays as it is."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            for file in self._files:
                file.look()
            self._stop.wait(LOOK_S)
        for file in self._files:
            file.end("the pool ends")

    def _controllers(self) -> tuple[KeptProcess, ...]:
        """As ``network.toml`` says; none where it says nothing that can be."""
        try:
            connection = read_connection(self._home)
        except CalabashError as error:
            log.warning("networks are not carried out", why=error.message)
            return ()
        controller = KeptProcess("network controller", "calabash.controllers.networks", *self._common)
        if connection is None or not connection.lab:
            return (controller,)
        lab = ("--lab", connection.lab)
        return controller, KeptProcess("keeper of appliances", "calabash.controllers.appliances", *self._common, *lab)

    def _fabrics(self) -> tuple[KeptProcess, ...]:
        return (KeptProcess("keeper of fabrics", "calabash.controllers.fabric", *self._common),)
