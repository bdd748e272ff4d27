"""The controller of the pool's networks as a process beside it, and in a network of namespaces who keeps the appliances of
its gateway hosts: both run while ``network.toml`` is there.

Theory of operation. A thread looks at the file every second. When it comes, the processes are started; when it changes or
goes, they are ended; one that dies is started again, after a pause that doubles while it keeps dying. They hold nothing
that is not in the databases, so that ending them costs nothing. Their standard input stays open: that it ends
tells them that the pool is gone, SIGKILL included.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Self

import structlog

from calabash.model.errors import CalabashError
from calabash.netd.settings import NETWORK_FILE, read_connection
from calabash.operations.children import RestartPause, end

LOOK_S = 1.0

log = structlog.get_logger(__name__)


class KeptProcess:
    """A process that is to run.

    Args:
        what: it is called so in the log.
        words: its command line, after Python's own.
    """

    def __init__(self, what: str, *words: str) -> None:
        self._what, self._words = what, words
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
            self._process = subprocess.Popen(
                [sys.executable, *self._words],
                stdin=subprocess.PIPE,
                start_new_session=True,  # what is typed at the pool's terminal is not for it
            )
            log.info(f"the {self._what} is started", pid=self._process.pid)

    def end(self, why: str) -> None:
        if self._process is not None:
            log.info(f"the {self._what} is ended", why=why)
            end(self._process)
            self._process = None


class NetworkKeeper:
    """The network controller of one pool, and what keeps appliances in a network of namespaces.

    Args:
        home: the pool's.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="network controller", daemon=True)
        self._kept: tuple[KeptProcess, ...] = ()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes; what is in OVN, and what runs on gateway hosts, stays as it is."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        known = None
        while not self._stop.is_set():
            file = self._file()
            if file != known:
                self._end("its settings changed")
                self._kept = self._wanted() if file is not None else ()
            known = file
            for process in self._kept:
                process.keep()
            self._stop.wait(LOOK_S)
        self._end("the pool ends")

    def _file(self) -> tuple[int, int, int] | None:
        try:
            found = (self._home / NETWORK_FILE).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _wanted(self) -> tuple[KeptProcess, ...]:
        """As the file says; none where it says nothing that can be."""
        try:
            connection = read_connection(self._home)
        except CalabashError as error:
            log.warning("networks are not carried out", why=error.message)
            return ()
        common = ("--home", str(self._home), "--supervised")
        controller = KeptProcess("network controller", "-m", "calabash.netd", *common)
        if connection is None or not connection.lab:
            return (controller,)
        lab = ("--lab", connection.lab)
        return controller, KeptProcess("keeper of appliances", "-m", "calabash.netd.appliances", *common, *lab)

    def _end(self, why: str) -> None:
        for process in self._kept:
            process.end(why)
        self._kept = ()
