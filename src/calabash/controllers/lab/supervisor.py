"""Supervisor of a lab: restarts OVN daemons that end. One process for each lab.

Theory of operation. The daemons are detached, so the supervisor holds a descriptor of each process (``pidfd_open``), which
becomes readable when the process ends. It then restarts the daemon, the first time at once; a daemon that ends repeatedly is
restarted after a pause that doubles. Restarts are counted in a file in the directory of the lab, which ``calabash net status``
and ``calabash net doctor`` read. A lab that is taken down is marked before its daemons are ended, and cannot be taken down
while a daemon is being started (``record.lasting``), so no daemon is started after the end.

The supervisor may be killed at any point; ``calabash net up`` starts another one, which takes over the running daemons.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from calabash.adapters.host.children import AUTHORITIES, PACKAGES, start_module
from calabash.adapters.host.files import lock_exclusive, write_durably
from calabash.adapters.host.log_stream import log_stream
from calabash.controllers.lab.central import DAEMONS
from calabash.controllers.lab.host import HOST_DAEMONS
from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.record import lasting, mark_of
from calabash.model.errors import CalabashError

LOCK_FILE, STATE_FILE, LOG_FILE = "supervisor.lock", "supervisor.json", "supervisor.log"
POLL_S = 2.0
PAUSE_S, PAUSE_S_MAX = 0.5, 30.0
LIVED_S = 60.0  # a daemon that ran for so long is restarted without a pause
START_S = 10.0

log = structlog.get_logger(__name__)


class DaemonRestarts(msgspec.Struct, kw_only=True, frozen=True):
    """Restarts of one daemon.

    Args:
        count: number of successful restarts.
        last_s: time of the last attempt in seconds since 1970.
        failure: error of the last attempt; "" if it succeeded.
    """

    count: int = 0
    last_s: float = 0.0
    failure: str = ""


@dataclass(slots=True)
class _Watched:
    """State of a daemon in the supervisor; times are monotonic.

    Args:
        descriptor: process descriptor (``pidfd``); -1 while the daemon does not run.
        begun_s: time at which the running process was first seen.
        pause_s: pause before the next restart.
        due_s: time of the next start.
    """

    descriptor: int = -1
    begun_s: float = 0.0
    pause_s: float = 0.0
    due_s: float = 0.0


class Supervisor:
    """Supervisor of the daemons of one lab.

    Args:
        lab: the lab, which is up.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._mark = mark_of(lab.record.prefix)
        self._watched = {name: _Watched() for name in lab.daemons()}
        self.restarts = read_restarts(lab.directory)

    def run(self) -> None:
        """Supervise the daemons until the lab is taken down."""
        while self.round():
            waiting = select.poll()
            for watched in self._watched.values():
                if watched.descriptor >= 0:
                    waiting.register(watched.descriptor, select.POLLIN)
            due = [w.due_s - time.monotonic() for w in self._watched.values() if w.descriptor < 0]
            waiting.poll(1000 * max(0.0, min((POLL_S, *due))))

    def round(self) -> bool:
        """Start daemons that have ended and are due; return False if the lab is down."""
        with lasting(self._lab.record.prefix, self._mark) as there:
            if not there:
                return False
            pids = self._lab.daemons()
            for name, watched in self._watched.items():
                self._check_daemon(name, watched, pids[name])
        return True

    def _check_daemon(self, name: str, watched: _Watched, pid: int) -> None:
        now_s = time.monotonic()
        if pid:
            if watched.descriptor < 0:
                with suppress(ProcessLookupError):
                    watched.descriptor, watched.begun_s = os.pidfd_open(pid), now_s
            return
        if watched.descriptor >= 0:
            os.close(watched.descriptor)
            watched.descriptor = -1
            if now_s - watched.begun_s > LIVED_S:
                watched.pause_s = 0.0
            watched.due_s = now_s + watched.pause_s
            log.warning("daemon ended", daemon=name, pause_s=watched.pause_s)
        if now_s < watched.due_s:
            return
        watched.pause_s = min(PAUSE_S_MAX, max(PAUSE_S, 2 * watched.pause_s))
        failure = ""
        try:
            self._start(name)
        except CalabashError as error:
            failure = error.message
            watched.due_s = time.monotonic() + watched.pause_s
            log.error("daemon cannot be started", daemon=name, why=failure, pause_s=watched.pause_s)
        else:
            log.warning("daemon restarted", daemon=name, took_s=round(time.monotonic() - now_s, 3))
        before = self.restarts.get(name, DaemonRestarts())
        count = before.count + (0 if failure else 1)
        self.restarts[name] = DaemonRestarts(count=count, last_s=time.time(), failure=failure)
        write_durably(self._lab.directory / STATE_FILE, json.dumps(msgspec.to_builtins(self.restarts)).encode())

    def _start(self, name: str) -> None:
        on, _, daemon = name.partition("/")
        if on == "central" and daemon in DAEMONS:
            self._lab.central.start(daemon)
        elif daemon in HOST_DAEMONS:
            self._lab.host(on).start(daemon)


def read_restarts(directory: Path) -> dict[str, DaemonRestarts]:
    """Return the restarts of each daemon of a lab (``h1/ovs-vswitchd``); daemons without restarts are left out."""
    try:
        return msgspec.json.decode((directory / STATE_FILE).read_bytes(), type=dict[str, DaemonRestarts])
    except (OSError, msgspec.DecodeError):
        return {}


def supervisor_pid(directory: Path) -> int:
    """Return the process ID of the supervisor of a lab, or 0."""
    try:
        with open(directory / LOCK_FILE, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read(32) or b"0")
    except (OSError, ValueError):
        return 0
    return 0


def start_supervisor(lab: Lab) -> None:
    """Start the supervisor of a lab that is up, unless it is running. Raises CalabashError if it does not start."""
    if supervisor_pid(lab.directory):
        return
    with open(lab.directory / LOG_FILE, "ab") as file:
        process = start_module(
            "calabash.controllers.lab.supervisor",
            "--prefix",
            lab.record.prefix,
            inherit=(*AUTHORITIES, *PACKAGES),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            new_session=True,
        )
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        if supervisor_pid(lab.directory):
            return
        time.sleep(0.02)
    if not supervisor_pid(lab.directory):
        raise CalabashError(
            f"the supervisor of network {lab.record.prefix} does not start",
            hint=f"see {lab.directory / LOG_FILE}; without it, ended daemons are only started by the next `calabash net up`",
        )


def main(words: list[str] | None = None) -> int:
    """Run ``python -I -m calabash.controllers.lab.supervisor --prefix PREFIX``. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -I -m calabash.controllers.lab.supervisor", description=__doc__)
    parser.add_argument("--prefix", required=True, help="prefix of the lab")
    arguments = parser.parse_args(words)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False),
        ],
        logger_factory=structlog.PrintLoggerFactory(log_stream()),
    )
    lab = Lab.of_prefix(arguments.prefix)
    if lab is None:
        log.error("no lab with that prefix is up", prefix=arguments.prefix)
        return 1
    os.close(os.open(lab.directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    lock_descriptor = lock_exclusive(lab.directory / LOCK_FILE)
    if lock_descriptor is None:
        return 0  # another supervisor is running
    os.ftruncate(lock_descriptor, 0)
    os.pwrite(lock_descriptor, f"{os.getpid()}\n".encode(), 0)
    log.info("supervisor started", network=arguments.prefix, pid=os.getpid())
    Supervisor(lab).run()
    log.info("lab is taken down")
    return 0


if __name__ == "__main__":
    sys.exit(main())
