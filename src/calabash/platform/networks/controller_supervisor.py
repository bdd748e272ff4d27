"""Supervisor of the controllers of networks and fabrics, which run as child processes of the pool.

The network controller runs while ``network.toml`` exists. In a lab, whose hosts are network namespaces of this machine,
the controller of the appliances on the gateway hosts runs as well. The fabric controller runs while ``fabric.toml``
exists.

Theory of operation. A thread checks the files every ``POLL_S`` seconds. When a file appears, its processes are started;
when it changes or is removed, they are ended; a process that dies is restarted after a pause that doubles while it
keeps dying. All state of the processes is in the databases, so ending them loses nothing. Their standard input stays
open: its end tells them that the pool has ended, even by SIGKILL.
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

POLL_S = 1.0

log = structlog.get_logger(__name__)


class SupervisedProcess:
    """Child process that is restarted when it ends.

    Args:
        what: name of the process in the log.
        module: Python module that it runs.
        words: arguments of the module.
    """

    def __init__(self, what: str, module: str, *words: str) -> None:
        self._what, self._module, self._words = what, module, words
        self._process: subprocess.Popen[bytes] | None = None
        self._due_s = 0.0
        self._pause = RestartPause()

    def ensure_running(self) -> None:
        """Start the process if it does not run and the pause after its last end is over."""
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
                new_session=True,  # no terminal signals: Ctrl-C ends the pool only
            )
            log.info(f"the {self._what} is started", pid=self._process.pid)

    def end(self, why: str) -> None:
        if self._process is not None:
            log.info(f"the {self._what} is ended", why=why)
            end(self._process)
            self._process = None


class WatchedFile:
    """Processes that run while a file exists.

    Args:
        path: path of the file.
        wanted: returns the processes to run; called when the file has appeared or changed.
    """

    def __init__(self, path: Path, wanted: Callable[[], tuple[SupervisedProcess, ...]]) -> None:
        self._path, self._wanted = path, wanted
        self._known: tuple[int, int, int] | None = None
        self._kept: tuple[SupervisedProcess, ...] = ()

    def reconcile(self) -> None:
        """End the processes if the file has changed or was removed, and start those that should run but do not."""
        file = self._mark()
        if file != self._known:
            self.end("its settings changed")
            self._kept = self._wanted() if file is not None else ()
        self._known = file
        for process in self._kept:
            process.ensure_running()

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


class ControllerSupervisor:
    """Thread that runs the controllers of one pool.

    Args:
        home: home directory of the pool.
        fabric: True to run the fabric controller while ``fabric.toml`` exists.
    """

    def __init__(self, home: Path, *, fabric: bool = False) -> None:
        self._home = home
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="network controller", daemon=True)
        self._common = ("--home", str(home.absolute()), "--supervised")
        self._files = [WatchedFile(home / NETWORK_FILE, self._controllers)]
        if fabric:
            self._files.append(WatchedFile(home / FABRIC_FILE, self._fabrics))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the controllers; OVN, the fabrics and the gateway hosts keep their state."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            for file in self._files:
                file.reconcile()
            self._stop.wait(POLL_S)
        for file in self._files:
            file.end("the pool ends")

    def _controllers(self) -> tuple[SupervisedProcess, ...]:
        """Return the controllers for ``network.toml``; none if the file is invalid."""
        try:
            connection = read_connection(self._home)
        except CalabashError as error:
            log.warning("the network controller is not started: network.toml is invalid", why=error.message)
            return ()
        controller = SupervisedProcess("network controller", "calabash.controllers.networks", *self._common)
        if connection is None or not connection.lab:
            return (controller,)
        lab = ("--lab", connection.lab)
        return controller, SupervisedProcess(
            "keeper of appliances", "calabash.controllers.appliances", *self._common, *lab
        )

    def _fabrics(self) -> tuple[SupervisedProcess, ...]:
        return (SupervisedProcess("keeper of fabrics", "calabash.controllers.fabric", *self._common),)
