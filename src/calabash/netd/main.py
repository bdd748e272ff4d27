"""``python -I -m calabash.netd``: the controller of one pool's networks, until it is told to stop."""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import threading
from pathlib import Path

import structlog

from calabash.agent.net.network_file import HostPlace, read_host_place
from calabash.model.errors import CalabashError, Reason
from calabash.netd.carrying import Carrier
from calabash.netd.listeners import LocalListeners
from calabash.netd.reconciler import Reconciler
from calabash.netd.settings import NETWORK_FILE, NetworkConnection, read_connection
from calabash.netd.source import FileBook, NetworkSource, PoolBook
from calabash.seams.host.files import lock_exclusive
from calabash.seams.host.log_stream import log_stream
from calabash.seams.ovn.local import LocalSwitch
from calabash.seams.pool.client import PoolClient

LOCK_FILE = "netd.lock"  # whoever holds it is the controller of this home

log = structlog.get_logger(__name__)


def main(words: list[str] | None = None) -> int:
    """What cannot start says why in two lines on stderr, ``error [reason]: ...`` and ``hint: ...``, and ends with 1."""
    parser = argparse.ArgumentParser(prog="python -I -m calabash.netd", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help=f"the pool's home, which has {NETWORK_FILE}")
    parser.add_argument("--book", type=Path, help="a file with the networks, in place of the pool's book")
    parser.add_argument("--supervised", action="store_true", help="end when standard input does")
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


def _run(home: Path, book: Path | None, *, supervised: bool) -> int:
    connection = read_connection(home)
    if connection is None:
        raise CalabashError(
            f"{home} has no {NETWORK_FILE}", reason=Reason.NOT_FOUND, hint="`calabash net up` writes it"
        )
    held = _alone(home)
    try:
        source: NetworkSource = FileBook(book) if book is not None else PoolBook(PoolClient(home))
        _carry(connection, source, read_host_place(home), supervised=supervised)
    finally:
        os.close(held)
    return 0


def _alone(home: Path) -> int:
    """A descriptor that holds this home's lock. Raises CONFLICT."""
    os.close(os.open(home / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    held = lock_exclusive(home / LOCK_FILE)
    if held is None:
        raise CalabashError(f"a network controller runs already at {home}", reason=Reason.CONFLICT)
    os.ftruncate(held, 0)
    os.pwrite(held, f"{os.getpid()}\n".encode(), 0)
    return held


def _carry(connection: NetworkConnection, source: NetworkSource, host: HostPlace | None, *, supervised: bool) -> None:
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
    carrier = Carrier(source, reconciler)
    reconciler.report = carrier.report
    listeners = LocalListeners(switch, reconciler.take_closed) if switch is not None else None
    if listeners is not None:
        reconciler.watch = listeners.watch
        listeners.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os.write(end, b"x"))
    worker = threading.Thread(target=reconciler.run, name="reconciler", daemon=True)
    worker.start()
    carrier.start()
    log.info("the network controller is up", northbound=connection.northbound, pid=os.getpid())
    _until(ended, supervised=supervised)
    carrier.close()
    if listeners is not None:
        listeners.close()
    reconciler.close()
    worker.join()
    log.info("the network controller is down")


def _until(ended: int, *, supervised: bool) -> None:
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    if supervised:
        poll.register(0, select.POLLIN | select.POLLHUP)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == ended or not os.read(0, 4096):
                return
