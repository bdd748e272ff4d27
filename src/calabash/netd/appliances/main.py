"""``python -I -m calabash.netd.appliances``: appliances of a gateway host, or of all gateway hosts of a lab of this machine.

It may be killed at any moment: what it started goes on, and the next one mends what is missing. Of two for one host the
second waits for the end of the first.
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

from calabash.model.errors import CalabashError, Reason
from calabash.model.network import GatewayKind, NetworkGateway
from calabash.model.network_services import Layer, LoadBalancer
from calabash.netd.appliances import tools
from calabash.netd.appliances.keeper import ApplianceHost, Appliances
from calabash.netd.appliances.switch import HostSwitch
from calabash.netd.appliances.telling import ApplianceNews
from calabash.netd.known import KnownNetworks
from calabash.netd.lab import record
from calabash.netd.lab.lab import Lab
from calabash.netd.settings import read_connection
from calabash.netd.source import NetworksFile, NetworkSource, PoolNetworks
from calabash.seams.links import namespaces
from calabash.seams.pool.client import PoolClient, quoted

RUN = Path("/run/calabash-appliances")
EVERY_S, NEWS_S = 0.5, 0.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceSite:
    """A host that this process keeps: the host, its switch's database, and where programs are started from.

    Args:
        lasting: whether the host is there, and stays until the end of the ``with``: a lab's goes with its lab.
    """

    host: ApplianceHost
    switch: str
    tools: tools.ApplianceTools
    lasting: Callable[[], AbstractContextManager[bool]] = lambda: contextlib.nullcontext(True)


def main(words: list[str] | None = None) -> int:
    """What cannot start says why in two lines on stderr and ends with 1."""
    parser = argparse.ArgumentParser(prog="python -I -m calabash.netd.appliances", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="the pool's home")
    parser.add_argument("--book", type=Path, help="a file with the networks, in place of the pool's book")
    parser.add_argument("--lab", help="prefix of a lab of this machine, all of whose gateway hosts are kept")
    parser.add_argument("--supervised", action="store_true", help="end when standard input does")
    parser.add_argument("--host", help="this gateway host, by its system-id")
    parser.add_argument("--hosts", default="", help="all gateway hosts, with commas; else network.toml's, or the lab's")
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
        raise CalabashError("namespaces need root", reason=Reason.NOT_PERMITTED, hint="sudo")
    if not arguments.host and not arguments.lab:
        raise CalabashError("which host this is was not said", hint="--host SYSTEM-ID, or --lab PREFIX")
    connection = read_connection(arguments.home)
    named = tuple(word for word in arguments.hosts.split(",") if word)
    named = named or (tuple(connection.gateways) if connection is not None else ())
    closed = [one for one in connection.ranges() if isinstance(one, IPv4Network)] if connection is not None else []
    pool = PoolClient(arguments.home)
    source: NetworkSource = NetworksFile(arguments.book) if arguments.book is not None else PoolNetworks(pool)
    ended, end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os.write(end, b"x"))
    book = FollowedBook(source)
    waiting = select.poll()
    waiting.register(ended, select.POLLIN)
    if arguments.supervised:
        waiting.register(0, select.POLLIN | select.POLLHUP)
    keeping, news, gone = False, None, threading.Event()
    while not waiting.poll(EVERY_S * 1000) and not gone.is_set():
        book.follow()
        if not keeping and (arguments.host or book.has_appliances or _are_left(arguments.lab)):
            keeping = True
            places, hosts = _of_lab(arguments.lab) if arguments.lab else _of_host(arguments.host, arguments.switch)
            news = ApplianceNews(source.report, hosts=len(places), all_hosts=not arguments.host)
            for place in places:
                work = (place, book, named or hosts, closed)
                also = {"secrets": lambda name: _certificate(pool, name), "news": news, "gone": gone}
                threading.Thread(target=_keep, args=work, kwargs=also, name=place.host.name, daemon=True).start()
        if news is not None:
            news.tell()
    return 0


class FollowedBook:
    """A book that is read again and again; while it cannot be read, what was known stays."""

    def __init__(self, source: NetworkSource) -> None:
        self._source = source
        self.known = KnownNetworks()
        self.read = False

    @property
    def has_appliances(self) -> bool:
        """Whether any network needs them, whose programs may have to be fetched first."""
        networks = self.known.networks
        return any(gateway.kind is GatewayKind.NFV for gateway in networks.all(NetworkGateway)) or any(
            balancer.layer is Layer.L7 for balancer in networks.all(LoadBalancer)
        )

    def follow(self) -> None:
        try:
            update = self._source.fetch_update(self.known.revision, NEWS_S)
        except CalabashError as error:
            log.warning("the book of networks cannot be read", why=error.message)
            return
        if update.whole or update.revision != self.known.revision:
            self.known.apply_update(update)
        self.read = True


def _keep(
    place: ApplianceSite,
    book: FollowedBook,
    hosts: Sequence[str],
    closed: Sequence[IPv4Network],
    *,
    secrets: Callable[[str], bytes | None],
    news: ApplianceNews,
    gone: threading.Event,
) -> None:
    """Until the host is no more, which ``gone`` then says."""
    appliances = Appliances(place.host, switch=HostSwitch(place.switch), tools=place.tools, secrets=secrets)
    said: object = None
    pause = threading.Event()
    with contextlib.ExitStack() as held:
        held.callback(gone.set)
        with place.lasting() as there:
            if not there:
                return
            place.host.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        held.enter_context(contextlib.suppress(FileNotFoundError))  # it went meanwhile
        held.enter_context(appliances.alone())
        while not pause.wait(EVERY_S):
            with place.lasting() as there:
                if not there:
                    return
                if not book.read:  # nothing is known: what runs is left as it is
                    continue
                try:
                    sights = appliances.keep(book.known.networks, hosts, closed)
                    news.seen(place.host.name, sights)
                    told = [(sight.replica or sight.item, sight.active, sight.failure) for sight in sights]
                except (CalabashError, OSError) as error:
                    told = [("", False, str(error))]
            if told != said:
                said = told
                for replica, active, failure in told:
                    log.info("appliance", host=place.host.name, replica=replica, active=active, failure=failure)


def _are_left(prefix: str | None) -> bool:
    """Whether an earlier process kept appliances there."""
    lab = Lab.of_prefix(prefix) if prefix else None
    return lab is not None and any((lab.host(name).directory / "x").exists() for name in lab.record.gateways)


def _of_lab(prefix: str) -> tuple[list[ApplianceSite], tuple[str, ...]]:
    lasting = partial(record.lasting, prefix, record.mark_of(prefix))
    lab = Lab.of_prefix(prefix)
    if lab is None:
        raise CalabashError(f"there is no lab {prefix}", reason=Reason.NOT_FOUND, hint="calabash net up")
    places = []
    for name in lab.record.gateways:
        host = lab.host(name)
        directory = host.directory / "x"
        made = ApplianceHost(
            name=name,
            prefix=f"{prefix}-{name}x",
            namespace=namespaces.path_of(host.namespace),
            directory=directory / "a",
        )
        own = tools.cached(directory / "bin")
        places.append(ApplianceSite(host=made, switch=host.ovs_socket, tools=own, lasting=lasting))
    return places, lab.record.gateways


def _of_host(name: str, switch: str) -> tuple[list[ApplianceSite], tuple[str, ...]]:
    own = tools.ApplianceTools()
    if missing := own.missing():
        raise CalabashError(
            f"appliances need what is not on this host: {', '.join(missing)}",
            reason=Reason.UNSUPPORTED,
            hint=f"apt-get install {' '.join(missing)}",
        )
    host = ApplianceHost(name=name, prefix="cbx-", namespace=None, directory=RUN)
    return [ApplianceSite(host=host, switch=switch, tools=own)], (name,)


def _certificate(pool: PoolClient, name: str) -> bytes | None:
    """A certificate with its key, as the pool hands it to root of its machine."""
    with contextlib.suppress(CalabashError):
        found = pool.get(f"/v1/networks/certificates/key?name={quoted(name)}")
        return f"{found['certificate']}\n{found['key']}\n".encode()
    return None
