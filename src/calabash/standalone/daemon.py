"""``python -m calabash.standalone.daemon``: builds the seams, starts the threads, serves, and stops in reverse.

It stays in the foreground. What cannot start says why in two lines on stderr, ``error [reason]: ...`` and
``hint: ...``, and ends with 1.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import structlog
import uvicorn

import calabash
from calabash.agent.inventory import no_devices
from calabash.agent.node import NodeAgent
from calabash.model.errors import CalabashError, Reason
from calabash.seams.clock import SystemClock
from calabash.seams.gpu.protocol import DriverOptions
from calabash.seams.gpu.vendors import open_present
from calabash.seams.host.files import disk_full_is_a_reason, free_bytes, lock_exclusive
from calabash.seams.store import open_store
from calabash.standalone.api import Context, PeerProtocol, application
from calabash.standalone.client import socket_path
from calabash.standalone.pool import Pool

LOCK_FILE = "pool.lock"
DATABASE_FILE = "pool.db"
FREE_BYTES_MIN = 16 << 20
_NATIVE = Path(calabash.__file__).resolve().parent / "_native"

log = structlog.get_logger(__name__)


def main() -> int:
    """Run the pool until it is told to stop."""
    os.umask(0o022)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # every waiting request is a connection
    parser = argparse.ArgumentParser(prog="calabash pool")
    parser.add_argument("--home", type=Path, required=True, help="directory of the pool's state")
    parser.add_argument("--sim", metavar="NAME", default="", help="use the simulated node of that name")
    parser.add_argument("--db", metavar="URL", default="", help="journal; - reads the URL from standard input")
    arguments = parser.parse_args()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        with ExitStack() as stack:
            _run(arguments.home.absolute(), arguments.sim, _database(arguments), stack)
    except CalabashError as error:
        print(f"error [{error.reason}]: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return 1
    return 0


def _database(arguments: argparse.Namespace) -> str:
    url: str = arguments.db
    if url == "-":
        url = sys.stdin.readline().strip()
    return url or f"sqlite:///{arguments.home.absolute() / DATABASE_FILE}"


def _run(home: Path, sim: str, url: str, stack: ExitStack) -> None:
    address = Path(socket_path(home))
    stack.enter_context(_single_instance(home))
    free = free_bytes(home)
    if free < FREE_BYTES_MIN:
        raise CalabashError(
            f"{home} has {free >> 20} MiB free, at least {FREE_BYTES_MIN >> 20} MiB are needed",
            reason=Reason.DISK_FULL,
            hint="free some space, or put the pool elsewhere with CALABASH_HOME",
        )
    store = open_store(url)
    stack.callback(store.close)
    store.check_writable()
    state_file = home / "sim" / sim / "node.state" if sim else None
    simulation = {}
    if state_file is not None:
        simulation = {"LD_LIBRARY_PATH": str(_NATIVE / "simgpu"), "CALABASH_SIM": str(state_file)}
    drivers = open_present(DriverOptions(sim_state=state_file))
    for driver in drivers:
        stack.callback(driver.close)
    if not any(driver.devices() for driver in drivers):
        raise no_devices()
    agent = NodeAgent(
        home=home,
        store=store,
        clock=SystemClock(),
        drivers=drivers,
        library=_NATIVE / "lib" / "libcalabash.so",
        environment=simulation,
    )
    agent.start()
    stack.callback(agent.stop)
    pool = Pool(agent=agent, store=store, clock=SystemClock(), owner_uid=os.geteuid())
    listener = stack.enter_context(_listening(address))
    context = Context(
        home=home,
        sim=sim,
        simulation=simulation,
        driver=", ".join(f"{d.vendor} {d.driver_version()}" for d in drivers),
        arbiter_pid=agent.arbiter_pid,
    )
    _serve(pool, listener, context)


def _serve(pool: Pool, listener: socket.socket, context: Context) -> None:
    app = application(pool, context, stop=lambda: setattr(server, "should_exit", True))
    config = uvicorn.Config(
        app,
        http=PeerProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=16 * 1024,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    log.info("pool is up", home=str(context.home), sim=context.sim, devices=len(pool.agent.inventory.devices()))
    # uvicorn raises a signal that ended it once more when it is done; then the way out leads through our stack.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    server.run(sockets=[listener])
    log.info("pool is down")


def _leave(_number: int, _frame: object) -> None:
    raise SystemExit(0)


@contextmanager
def _single_instance(home: Path) -> Iterator[None]:
    """Hold the lock of the home. Raises POOL_RUNNING with the pid of whoever holds it."""
    with disk_full_is_a_reason(f"cannot make {home}"):
        home.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = lock_exclusive(home / LOCK_FILE)
    if descriptor is None:
        holder = (home / LOCK_FILE).read_text().strip() or "unknown"
        raise CalabashError(
            f"a pool runs already at {home}, pid {holder}",
            reason=Reason.POOL_RUNNING,
            hint="use it, or stop it with `calabash down`",
        )
    with disk_full_is_a_reason(f"cannot write {home / LOCK_FILE}"):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    """The pool's socket. We hold the lock, so a socket that is there belongs to a dead pool."""
    if path.exists() and not stat.S_ISSOCK(path.lstat().st_mode):
        raise CalabashError(f"{path} is not a socket", reason=Reason.BAD_FILE, hint="move it away")
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind(str(path))
        # Everybody may ask; what they may do is decided by who they are.
        path.chmod(0o666)
        listener.listen(1024)
        yield listener
    finally:
        listener.close()
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
