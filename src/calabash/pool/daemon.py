"""Pool daemon, ``python -I -m calabash.pool.daemon``: builds adapters, starts threads, serves, and stops in reverse.

It stays in the foreground. If it cannot start, it writes two lines to stderr, ``error [reason]: ...`` and ``hint: ...``, and
exits with status 1.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import resource
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import msgspec
import structlog

from calabash.adapters.clock import SystemClock
from calabash.adapters.gpu.library import shim_library, simulated_environment
from calabash.adapters.gpu.protocol import DriverOptions
from calabash.adapters.gpu.vendors import open_present
from calabash.adapters.host.children import end_urgency
from calabash.adapters.host.service_manager import report_ready
from calabash.adapters.pool.client import socket_path
from calabash.adapters.store import Store, absolute_url, open_store
from calabash.api.gateway import ConsoleSettings
from calabash.model.errors import CalabashError
from calabash.model.extras import WITHOUT_PLACEMENT, is_installed
from calabash.node.agent import NodeAgent
from calabash.node.devices.inventory import no_devices
from calabash.node.membership.protocol import choose_membership, group_name
from calabash.node.ports.host_ports import HostNetwork
from calabash.node.ports.network_file import host_switch
from calabash.node.ports.port_facts import PlatformPorts
from calabash.node.processes.unmanaged import UnmanagedPolicy
from calabash.node.slots.names import SlotNames
from calabash.platform.access.permission import Permission
from calabash.platform.audit.trail import AuditTrail
from calabash.platform.home.directory import DATABASE_FILE, own_home, require_room
from calabash.platform.home.housekeeping import Housekeeper
from calabash.platform.home.limits import Limits
from calabash.platform.home.logs import LOG_FILE, STARTING, configure
from calabash.platform.http.gateway_supervisor import OFF, ConsoleListener, gateway_socket
from calabash.platform.http.request_limits import UserRequestLimits
from calabash.platform.http.server import Listener, Server
from calabash.platform.networks.controller_supervisor import ControllerSupervisor
from calabash.platform.networks.store import NetworkStore
from calabash.platform.networks.wiring import networking
from calabash.platform.tenancy.store import TenancyStore, TenantDirectory
from calabash.pool.handlers.application import application
from calabash.pool.handlers.context import Context
from calabash.pool.jobs.service import Jobs
from calabash.pool.networks.listening_ports import PlaceJournal
from calabash.pool.pool import Pool
from calabash.pool.requests.run_times import RunTimes
from calabash.pool.settings import read_settings
from calabash.pool.wiring import build_pool
from calabash.transport.listening import listen_unix

SWITCH_INTERVAL_S = 0.001  # a reply passes several threads, and a computing thread must not delay each of them

log = structlog.get_logger(__name__)


def main() -> int:
    """Run the pool until it is stopped; return the exit status."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    faulthandler.register(signal.SIGUSR2)  # prints the stacks of all threads of a pool that does not answer
    os.umask(0o022)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # every waiting request is a connection
    parser = argparse.ArgumentParser(prog="calabash pool")
    parser.add_argument("--home", type=Path, required=True, help="directory of the pool's state")
    parser.add_argument("--sim", metavar="NAME", default="", help="use the simulated node of that name")
    parser.add_argument("--db", metavar="URL", default="", help="database; - reads the URL from standard input")
    parser.add_argument(
        "--unmanaged",
        choices=[policy.value for policy in UnmanagedPolicy],
        default=UnmanagedPolicy.TELL.value,
        help="policy for processes that use a device without a slice",
    )
    parser.add_argument(
        "--console",
        metavar="HOST:PORT",
        default=OFF,
        help="address of the console and the API; `default`: the address in pool.toml",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="allow an address that other machines can reach to be served without TLS",
    )
    arguments = parser.parse_args()
    configure()
    try:
        with ExitStack() as stack:
            _run(arguments, _database(arguments), stack)
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
    return absolute_url(url) if url else f"sqlite:///{arguments.home.absolute() / DATABASE_FILE}"


def _run(arguments: argparse.Namespace, url: str, stack: ExitStack) -> None:
    home, sim = arguments.home.absolute(), arguments.sim
    address = Path(socket_path(home))
    stack.enter_context(own_home(home))
    settings = read_settings(home)
    require_room(home)
    store = _journal(url, stack)
    state_file = home / "sim" / sim / "node.state" if sim else None
    simulation = {} if state_file is None else simulated_environment(state_file)
    _starting("drivers and cards")
    drivers = open_present(DriverOptions(sim_state=state_file))
    for driver in drivers:
        stack.callback(driver.close)
    if not any(driver.devices() for driver in drivers):
        raise no_devices()
    names, directory = SlotNames(), TenantDirectory(store.tenancy)
    membership = choose_membership(home, home / "alloc", names)
    permission = Permission(os.geteuid(), everybody=membership.form == "kernel", people=directory.people)
    networks, certificates = networking(
        store.networks, permission=permission, people=directory.people, clock=SystemClock()
    )
    journal = PlaceJournal(home)  # read before the agent removes unused ports, so that ports of servers are kept
    network = _host_network(home, networks, journal, names)
    agent = NodeAgent(
        home=home,
        store=store,
        clock=SystemClock(),
        drivers=drivers,
        library=shim_library(),
        environment=simulation,
        one_process=settings.devices.one_process,
        settings=settings.devices.cards(),
        unmanaged_policy=UnmanagedPolicy(arguments.unmanaged),
        membership=membership,
        workers=settings.workers.users(),
        network=network,
        names=names,
    )
    end_urgency()  # later threads and processes have the usual priority
    agent.start(_starting)
    stack.callback(agent.stop)
    _starting("scheduler and API")
    audit = _audit_trail(home, store, stack)
    pool, notices = build_pool(
        stack,
        home=home,
        settings=settings,
        store=store,
        clock=SystemClock(),
        agent=agent,
        directory=directory,
        permission=permission,
        networks=networks,
        network=network,
        journal=journal,
        audit=audit,
    )
    fairness = UserRequestLimits(_possible(settings.user), exempt=lambda uid: uid in {0, os.geteuid()})
    console = stack.enter_context(_console(arguments, settings.console))
    context = Context(
        home=home,
        sim=sim,
        simulation=simulation,
        driver=", ".join(f"{d.vendor} {d.driver_version()}" for d in drivers),
        arbiter_pid=agent.arbiter_pid,
        console=console.url,
        console_failure=console.failure,
    )
    listener = stack.enter_context(Listener(fairness))
    listen_unix(address, listener, mode=0o666)  # permissions are checked per request
    stack.callback(address.unlink, missing_ok=True)  # the path is this pool's own from here on
    listeners, token_socket = [listener], ""
    if console.listener is not None:
        listeners.append(stack.enter_context(Listener(fairness)))
        token_socket = str(gateway_socket(home))
        listen_unix(Path(token_socket), listeners[1], mode=0o600)
        stack.callback(Path(token_socket).unlink, missing_ok=True)
        console.serve(token_socket, credential=pool.tokens.gateway().secret)
    _start_over_use_watch(pool, stack)
    keeper = Housekeeper(
        store=store,
        clock=SystemClock(),
        kept=settings.journal.retention(),
        log_file=home / LOG_FILE,
        check=lambda: _end_overdue(pool),
        preload=_package_of_placement(),
    )
    keeper.start()
    stack.callback(keeper.stop)
    _keep_run_times(agent, pool.tenancy, stack)
    stack.enter_context(ControllerSupervisor(home, fabric=settings.fabric.run))
    log.info("pool is up", home=str(home), sim=sim, serves=permission.serves(), membership=agent.membership)
    _become_ready()
    server = Server(listeners, fairness, token_socket=token_socket, ending=networks.end)
    server.run(
        application(
            pool,
            context,
            audit=audit,
            fairness=fairness,
            jobs=Jobs(pool, home=home, settings=settings.jobs),
            notices=notices,
            networks=networks,
            certificates=certificates,
            stop=server.stop,
        )
    )
    log.info("pool is down")


def _become_ready() -> None:
    """Report that the start is complete, as the sockets listen, and let signals unwind the stack from now on.

    uvicorn raises the signal that ended it again at its end.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit_by_signal)
    report_ready()


def _starting(step: str) -> None:
    """Log the step of the start that begins now. ``calabash up`` keeps waiting for the pool while such lines appear."""
    log.info(STARTING, step=step)


def _journal(url: str, stack: ExitStack) -> Store:
    _starting("journal")
    store = open_store(url)
    stack.callback(store.close)
    store.check_writable()
    return store


def _host_network(home: Path, networks: NetworkStore, journal: PlaceJournal, names: SlotNames) -> HostNetwork:
    return HostNetwork(
        home=home,
        pool=group_name(home),
        switch=lambda: host_switch(home),
        source=PlatformPorts(lambda: networks.state().networks),
        names=names,
        places=journal.held,
    )


def _start_over_use_watch(pool: Pool, stack: ExitStack) -> None:
    pool.over_use.start()
    stack.callback(pool.over_use.stop)


def _end_overdue(pool: Pool) -> None:
    """Do what is due: end standing allocations and take ports that were not renewed in time, and store the past use of queues.

    A standing allocation has no program on this machine.
    """
    pool.standing.end_overdue()
    pool.ports.places.end_overdue()
    pool.past_use.save_if_due()


def _console(arguments: argparse.Namespace, settings: ConsoleSettings) -> ConsoleListener:
    """Return the console's listener. The options --console and --insecure override the settings of pool.toml."""
    listen = settings.listen if arguments.console == "default" else arguments.console
    wanted = msgspec.structs.replace(settings, listen=listen, insecure=settings.insecure or arguments.insecure)
    return ConsoleListener(wanted)


def _package_of_placement() -> str:
    """Return the module that the scheduler's tables import to learn; "" if it is not installed, which is logged."""
    if is_installed("placement"):
        return "scipy.optimize"
    log.info(WITHOUT_PLACEMENT)
    return ""


def _audit_trail(home: Path, store: Store, stack: ExitStack) -> AuditTrail:
    audit = AuditTrail(home, store.audit, SystemClock())
    audit.start()
    stack.callback(audit.stop)
    return audit


def _keep_run_times(agent: NodeAgent, tenancy: TenancyStore, stack: ExitStack) -> None:
    run_times = RunTimes(agent=agent, tenancy=tenancy, clock=SystemClock())
    run_times.start()
    stack.callback(run_times.stop)


def _possible(limits: Limits) -> Limits:
    """Return the limits, with a user's connections limited to half of the file descriptors that this process may open."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
    return msgspec.structs.replace(limits, connections=max(16, min(limits.connections, most)))


def _exit_by_signal(_number: int, _frame: object) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
