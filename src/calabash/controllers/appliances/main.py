"""Process of the appliances, for one gateway host or all gateway hosts of a lab.

Run it with ``python -I -m calabash.controllers.appliances``. It may be killed at any point: the programs that it started
continue, and the next process repairs what is missing. Of two processes for one host, the second waits for the first to end.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Network
from pathlib import Path

import structlog

from calabash.adapters.links import namespaces
from calabash.adapters.pool.client import PoolClient
from calabash.api import endpoints
from calabash.controllers.appliances import programs
from calabash.controllers.appliances.host_appliances import ApplianceHost, Appliances
from calabash.controllers.appliances.reporter import ApplianceReporter
from calabash.controllers.appliances.switch import HostSwitch
from calabash.controllers.lab import record
from calabash.controllers.lab.lab import Lab
from calabash.controllers.networks.settings import read_connection
from calabash.controllers.sources.network_source import NetworksFile, NetworkSource, PoolNetworks
from calabash.controllers.sources.network_store import KnownNetworks
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import GatewayKind, NetworkGateway
from calabash.model.network_services import Layer, LoadBalancer

RUN = Path("/run/calabash-appliances")
EVERY_S, NEWS_S = 0.5, 0.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceSite:
    """Host that this process manages.

    Args:
        host: names, namespace and directory of the host.
        switch: address of the database of the host's Open vSwitch.
        tools: locations of the programs that run in replicas.
        lasting: context manager that yields True if the host exists, and prevents its removal while it lasts. A host of
            a lab is removed together with the lab.
    """

    host: ApplianceHost
    switch: str
    tools: programs.ApplianceTools
    lasting: Callable[[], AbstractContextManager[bool]] = lambda: contextlib.nullcontext(True)


def main(words: list[str] | None = None) -> int:
    """Run until the process gets SIGTERM or SIGINT; return the exit status.

    Errors at the start are printed as two lines on stderr; the exit status is then 1.
    """
    parser = argparse.ArgumentParser(prog="python -I -m calabash.controllers.appliances", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="the pool's home")
    parser.add_argument("--book", type=Path, help="a file with the networks, instead of those of the pool")
    parser.add_argument("--lab", help="prefix of a lab on this machine; manages all its gateway hosts")
    parser.add_argument("--supervised", action="store_true", help="end at the end of standard input")
    parser.add_argument("--host", help="this gateway host, by its system-id")
    parser.add_argument(
        "--hosts", default="", help="all gateway hosts, comma-separated; default: those of network.toml or of the lab"
    )
    parser.add_argument(
        "--switch", default="unix:/var/run/openvswitch/db.sock", help="the database of this host's switch"
    )
    arguments = parser.parse_args(words)
    try:
        return _run(arguments)
    except CalabashError as error:
        print(f"error [{error.reason}]: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return 1


def _run(arguments: argparse.Namespace) -> int:
    if os.geteuid() != 0:
        raise CalabashError("network namespaces need root", reason=Reason.NOT_PERMITTED, hint="run with sudo")
    if not arguments.host and not arguments.lab:
        raise CalabashError("no host is given", hint="use --host SYSTEM-ID, or --lab PREFIX")
    connection = read_connection(arguments.home)
    named = tuple(word for word in arguments.hosts.split(",") if word)
    named = named or (tuple(connection.gateways) if connection is not None else ())
    closed = [one for one in connection.ranges() if isinstance(one, IPv4Network)] if connection is not None else []
    pool = PoolClient(arguments.home)
    source: NetworkSource = NetworksFile(arguments.book) if arguments.book is not None else PoolNetworks(pool)
    ended, end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os.write(end, b"x"))
    networks = FollowedNetworks(source)
    waiting = select.poll()
    waiting.register(ended, select.POLLIN)
    if arguments.supervised:
        waiting.register(0, select.POLLIN | select.POLLHUP)
    active, reporter, host_removed = False, None, threading.Event()
    while not waiting.poll(EVERY_S * 1000) and not host_removed.is_set():
        networks.follow()
        if not active and (arguments.host or networks.has_appliances or _has_leftover_appliances(arguments.lab)):
            active = True
            sites, hosts = _lab_sites(arguments.lab) if arguments.lab else _host_site(arguments.host, arguments.switch)
            reporter = ApplianceReporter(source.report, hosts=len(sites), all_hosts=not arguments.host)
            for site in sites:
                work = (site, networks, named or hosts, closed)
                also = {
                    "secrets": lambda name: _certificate(pool, name),
                    "reporter": reporter,
                    "host_removed": host_removed,
                }
                threading.Thread(target=_manage_host, args=work, kwargs=also, name=site.host.name, daemon=True).start()
        if reporter is not None:
            reporter.send()
    return 0


class FollowedNetworks:
    """Networks as last read from their source by ``follow``; an unreachable source changes nothing."""

    def __init__(self, source: NetworkSource) -> None:
        self._source = source
        self.known = KnownNetworks()
        self.read = False

    @property
    def has_appliances(self) -> bool:
        """True if a network needs appliances, whose programs may have to be fetched first."""
        networks = self.known.networks
        return any(gateway.kind is GatewayKind.NFV for gateway in networks.all(NetworkGateway)) or any(
            balancer.layer is Layer.L7 for balancer in networks.all(LoadBalancer)
        )

    def follow(self) -> None:
        try:
            update = self._source.fetch_update(self.known.revision, NEWS_S)
        except CalabashError as error:
            log.warning("networks cannot be read", why=error.message)
            return
        if update.whole or update.revision != self.known.revision:
            self.known.apply_update(update)
        self.read = True


def _manage_host(
    site: ApplianceSite,
    networks: FollowedNetworks,
    hosts: Sequence[str],
    closed: Sequence[IPv4Network],
    *,
    secrets: Callable[[str], bytes | None],
    reporter: ApplianceReporter,
    host_removed: threading.Event,
) -> None:
    """Reconcile the appliances of one host repeatedly until the host is removed; then set ``host_removed``.

    Args:
        site: the host.
        networks: the networks; nothing is changed before they were read for the first time.
        hosts: names of all hosts of appliances, over which replicas are distributed.
        closed: ranges of the platform's own networks, which tenants must not reach.
        secrets: given a certificate's name ``VPC/NAME``, returns certificate and key as PEM; None if there is none.
        reporter: receives the states of the replicas.
        host_removed: event to set at the end.
    """
    appliances = Appliances(site.host, switch=HostSwitch(site.switch), tools=site.tools, secrets=secrets)
    logged: object = None
    pause = threading.Event()
    with contextlib.ExitStack() as held:
        held.callback(host_removed.set)
        with site.lasting() as there:
            if not there:
                return
            site.host.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        held.enter_context(contextlib.suppress(FileNotFoundError))  # the host was removed meanwhile
        held.enter_context(appliances.exclusive())
        while not pause.wait(EVERY_S):
            with site.lasting() as there:
                if not there:
                    return
                if not networks.read:  # nothing is known yet: leave running programs unchanged
                    continue
                try:
                    states = appliances.reconcile(networks.known.networks, hosts, closed)
                    reporter.update(site.host.name, states)
                    current = [(state.replica or state.item, state.active, state.failure) for state in states]
                except (CalabashError, OSError) as error:
                    current = [("", False, str(error))]
            if current != logged:
                logged = current
                for replica, active, failure in current:
                    log.info("appliance", host=site.host.name, replica=replica, active=active, failure=failure)


def _has_leftover_appliances(prefix: str | None) -> bool:
    """Return True if an earlier process left appliances in the lab with this prefix; False if ``prefix`` is None."""
    lab = Lab.of_prefix(prefix) if prefix else None
    return lab is not None and any((lab.host(name).directory / "x").exists() for name in lab.record.gateways)


def _lab_sites(prefix: str) -> tuple[list[ApplianceSite], tuple[str, ...]]:
    lasting = partial(record.lasting, prefix, record.mark_of(prefix))
    lab = Lab.of_prefix(prefix)
    if lab is None:
        raise CalabashError(f"lab {prefix} does not exist", reason=Reason.NOT_FOUND, hint="calabash net up")
    sites = []
    for name in lab.record.gateways:
        host = lab.host(name)
        directory = host.directory / "x"
        made = ApplianceHost(
            name=name,
            prefix=f"{prefix}-{name}x",
            namespace=namespaces.path_of(host.namespace),
            directory=directory / "a",
        )
        own = programs.cached(directory / "bin")
        sites.append(ApplianceSite(host=made, switch=host.ovs_socket, tools=own, lasting=lasting))
    return sites, lab.record.gateways


def _host_site(name: str, switch: str) -> tuple[list[ApplianceSite], tuple[str, ...]]:
    own = programs.ApplianceTools()
    if missing := own.missing():
        raise CalabashError(
            f"programs of appliances are missing on this host: {', '.join(missing)}",
            reason=Reason.UNSUPPORTED,
            hint=f"apt-get install {' '.join(missing)}",
        )
    host = ApplianceHost(name=name, prefix="cbx-", namespace=None, directory=RUN)
    return [ApplianceSite(host=host, switch=switch, tools=own)], (name,)


def _certificate(pool: PoolClient, name: str) -> bytes | None:
    """Return certificate and key as PEM, or None. The pool serves them to root on its machine only."""
    with contextlib.suppress(CalabashError):
        found = pool.send(endpoints.SHOW_CERTIFICATE_KEY, query={"name": name})
        return f"{found['certificate']}\n{found['key']}\n".encode()
    return None
