"""Process of the network controller: ``python -I -m calabash.controllers.networks``."""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import threading
from pathlib import Path

import structlog

from calabash.adapters.host.files import lock_exclusive
from calabash.adapters.host.log_stream import log_stream
from calabash.adapters.ovn.open_vswitch import LocalSwitch
from calabash.adapters.pool.client import PoolClient
from calabash.controllers.networks.backend_listeners import LocalListeners
from calabash.controllers.networks.pool_channel import PoolSync
from calabash.controllers.networks.reconciler import Reconciler
from calabash.controllers.networks.settings import NETWORK_FILE, NetworkConnection, read_connection
from calabash.controllers.sources.network_source import NetworksFile, NetworkSource, PoolNetworks
from calabash.model.errors import CalabashError, Reason
from calabash.node.ports.network_file import HostPlace, read_host_place

LOCK_FILE = "netd.lock"  # held by the controller of this home

log = structlog.get_logger(__name__)


def main(words: list[str] | None = None) -> int:
    """Run the controller until it is told to stop; return the exit status.

    An error at the start is printed as two lines on stderr, ``error [reason]: ...`` and ``hint: ...``, and the exit
    status is 1.
    """
    parser = argparse.ArgumentParser(prog="python -I -m calabash.controllers.networks", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help=f"the pool's home, which has {NETWORK_FILE}")
    parser.add_argument("--book", type=Path, help="a file with the networks, instead of those of the pool")
    parser.add_argument("--supervised", action="store_true", help="end at the end of standard input")
    arguments = parser.parse_args(words)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False),
        ],
        logger_factory=structlog.PrintLoggerFactory(log_stream()),
    )
    try:
        return _run(arguments.home, arguments.book, supervised=arguments.supervised)
    except CalabashError as error:
        print(f"error [{error.reason}]: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return 1


def _run(home: Path, file: Path | None, *, supervised: bool) -> int:
    connection = read_connection(home)
    if connection is None:
        raise CalabashError(
            f"{home} has no {NETWORK_FILE}", reason=Reason.NOT_FOUND, hint="`calabash net up` writes it"
        )
    lock = _take_lock(home)
    try:
        source: NetworkSource = NetworksFile(file) if file is not None else PoolNetworks(PoolClient(home))
        _run_threads(connection, source, read_host_place(home), supervised=supervised)
    finally:
        os.close(lock)
    return 0


def _take_lock(home: Path) -> int:
    """Take the lock of this home and return its descriptor. Raises CalabashError (CONFLICT) if another controller holds it."""
    os.close(os.open(home / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    lock = lock_exclusive(home / LOCK_FILE)
    if lock is None:
        raise CalabashError(f"another network controller is running at {home}", reason=Reason.CONFLICT)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _run_threads(
    connection: NetworkConnection, source: NetworkSource, host: HostPlace | None, *, supervised: bool
) -> None:
    ended, end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    switch = LocalSwitch(host.switch) if host is not None else None
    reconciler = Reconciler(
        connection.northbound,
        connection.southbound,
        credentials=connection.credentials(),
        gateways=tuple(connection.gateways),
        protected=connection.ranges(),
        rest_s=connection.rest_s,
        own_switch=(host.name, lambda: switch.session.ready) if host is not None and switch is not None else None,
    )
    sync = PoolSync(source, reconciler)
    listeners = LocalListeners(switch, reconciler.set_closed_backends) if switch is not None else None
    if listeners is not None:
        listeners.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os.write(end, b"x"))
    watch = listeners.watch if listeners is not None else None
    worker = threading.Thread(target=reconciler.run, args=(sync.report, watch), name="reconciler", daemon=True)
    worker.start()
    sync.start()
    log.info("network controller started", northbound=connection.northbound, pid=os.getpid())
    _wait_for_end(ended, supervised=supervised)
    sync.close()
    if listeners is not None:
        listeners.close()
    reconciler.close()
    worker.join()
    log.info("network controller stopped")


def _wait_for_end(ended: int, *, supervised: bool) -> None:
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    if supervised:
        poll.register(0, select.POLLIN | select.POLLHUP)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == ended or not os.read(0, 4096):
                return
