"""The controller of the pool's networks as a process beside it: running while ``network.toml`` is there.

Theory of operation. A thread looks at the file every second. When it comes, the controller is started; when it changes or
goes, that one is ended; one that dies is started again, after a pause that doubles while it keeps dying. It holds nothing
that is not in the databases, so that ending it costs nothing. Its standard input stays open: that it ends
tells the controller that the pool is gone, SIGKILL included.
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

LOOK_S = 1.0
PAUSE_S, PAUSE_S_MAX = 0.5, 30.0
LIVED_S = 60.0  # whoever lived for so long did not die of how it was started
END_S = 5.0

log = structlog.get_logger(__name__)


class NetworkKeeper:
    """The network controller of one pool.

    Args:
        home: the pool's.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="network controller", daemon=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._begun_s = 0.0
        self._pause_s = PAUSE_S
        self._said = ""

    @property
    def pid(self) -> int:
        """Of the controller, 0 while there is none."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the controller; what is in OVN stays as it is."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        known = None
        while not self._stop.is_set():
            file = self._file()
            if file != known and self._process is not None:
                self._end("its settings changed")
            known = file
            if file is not None and self._process is None and self._usable():
                self._start()
            if self._wait(LOOK_S if self._process is not None or file is None else self._pause_s):
                self._died()
        self._end("the pool ends")

    def _file(self) -> tuple[int, int, int] | None:
        try:
            found = (self._home / NETWORK_FILE).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _usable(self) -> bool:
        try:
            read_connection(self._home)
        except CalabashError as error:
            if error.message != self._said:
                log.warning("networks are not carried out", why=error.message)
            self._said = error.message
            return False
        self._said = ""
        return True

    def _start(self) -> None:
        self._begun_s = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "calabash.netd", "--home", str(self._home), "--supervised"],
            stdin=subprocess.PIPE,
            start_new_session=True,  # what is typed at the pool's terminal is not for it
        )
        log.info("the network controller is started", pid=self._process.pid)

    def _wait(self, within_s: float) -> bool:
        """Whether the controller died meanwhile."""
        process = self._process
        self._stop.wait(within_s)
        return process is not None and process.poll() is not None

    def _died(self) -> None:
        assert self._process is not None
        code = self._forget()
        lived = time.monotonic() - self._begun_s > LIVED_S
        self._pause_s = PAUSE_S if lived else min(PAUSE_S_MAX, 2 * self._pause_s)
        log.warning("the network controller ended and will be started again", code=code, pause_s=self._pause_s)
        self._stop.wait(self._pause_s)

    def _end(self, why: str) -> None:
        process = self._process
        if process is None:
            return
        log.info("the network controller is ended", why=why)
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
        self._forget()
        self._pause_s = PAUSE_S

    def _forget(self) -> int:
        process, self._process = self._process, None
        assert process is not None
        code = process.wait()
        if process.stdin:
            process.stdin.close()
        return code
