"""Listening sockets of a machine with all features on, compared with the tables of SECURITY.md in both directions."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.daemons.remote import RemoteSite
from tests.daemons.users import ANN, open_way
from tests.daemons.world import World, until
from tests.listening import MACHINE, OTHERS, ListenerRow, rows
from tests.unit.node.port_world import PortHost, held, may

from calabash.node.ports.entry_sockets import EntrySockets

pytestmark = pytest.mark.skipif(not may(), reason="network namespaces and workers of other users need root")

_LISTENS_TCP, _LISTENS_UNIX = "0A", 0x10000
KEEPER = "keeper of a program in a tenant's network"
# Rows whose programs are OVN's and those of appliances: tests/net starts them.
ELSEWHERE = {"`ovsdb-server` of a lab network", "`haproxy` and `conntrackd` of load balancer and gateway appliances"}


@dataclass(frozen=True)
class Listening:
    """A listening socket: a path, ``@name`` for an abstract one, ``HOST:PORT``, or ``udp HOST:PORT``."""

    where: str
    command: str


def processes_of(home: Path, *known: int) -> set[int]:
    """Return the processes that name a home in their arguments or environment, or are known, with all their descendants."""
    parents, found = {}, set(known)
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            pid = int(entry.name)
            parents[pid] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            told = (entry / "cmdline").read_bytes() + b"\0" + (entry / "environ").read_bytes()
            if os.fsencode(home) in told:
                found.add(pid)
    found.discard(os.getpid())
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _inodes(pid: int) -> set[str]:
    """Return the inode numbers of the sockets of a process."""
    found = set()
    for entry in (Path("/proc") / str(pid) / "fd").iterdir():
        with suppress(OSError):
            link = os.readlink(entry)
            if link.startswith("socket:["):
                found.add(link[8:-1])
    return found


def _host(text: str) -> str:
    """Return the address of /proc/net/tcp or tcp6, which has words of 32 bits in the byte order of the machine."""
    raw = b"".join(bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8))
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


def _table(pid: int, name: str) -> list[list[str]]:
    """Return a socket table of the network namespaces of a process and of this process, as lines of words."""
    texts = [(Path("/proc") / of / "net" / name).read_text() for of in (str(pid), "self")]
    return [line.split() for text in texts for line in text.splitlines()[1:]]


def listening_of(pid: int) -> set[Listening]:
    """Return the listening sockets of a process; none if it has ended."""
    found = set()
    try:
        command = (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        inodes = _inodes(pid)
        for words in _table(pid, "unix"):
            if int(words[3], 16) & _LISTENS_UNIX and words[6] in inodes:
                found.add(Listening(words[7] if len(words) > 7 else "unnamed", command))
        for name in ("tcp", "tcp6", "udp", "udp6"):
            for words in _table(pid, name):
                host, _, port = words[1].partition(":")
                bound = (
                    words[3] == _LISTENS_TCP if name.startswith("tcp") else int(words[2].rpartition(":")[2], 16) == 0
                )
                if bound and words[9] in inodes:
                    kind = "" if name.startswith("tcp") else "udp "
                    found.add(Listening(f"{kind}{_host(host)}:{int(port, 16)}", command))
    except OSError:
        return set()
    return found


@pytest.fixture
def directory() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="calabash-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def _row_of(found: Listening, table: list[ListenerRow], tcp: dict[str, str]) -> str:
    """Return the name of the table row that lists a socket; "" if none does.

    Args:
        tcp: TCP addresses of this test, by the name of the row.
    """
    if not found.where.startswith("/"):
        return next((name for name, address in tcp.items() if address == found.where), "")
    return next((row.name for row in table if row.has_socket(found.where)), "")


def _as_it_says(row: ListenerRow, path: str) -> bool:
    return row.mode is None or stat.S_IMODE(Path(path).stat().st_mode) == row.mode


def test_what_listens_is_what_the_tables_say(directory: Path, hold: str) -> None:
    """A pool with its console, an exporter, a server of remote devices, and slices in the modes that have sockets."""
    table = rows(MACHINE) + rows(OTHERS)
    with ExitStack() as stack:
        world = stack.enter_context(closing(World(directory / "home", options=("--console", "127.0.0.1:0"))))
        world.up()
        open_way(world.home)
        console = world.client.get("/v1/status")["console"].removeprefix("http://")
        with urllib.request.urlopen(f"http://{console}/", timeout=60) as answer:
            assert answer.status == 200, "the gateway is started by the first connection"
        exporter = subprocess.Popen(
            [sys.executable, "-m", "calabash.cli.main", "serve", "exporter", "--listen", "127.0.0.1:0", "--open"],
            env={**os.environ, "CALABASH_HOME": str(world.home)},
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(exporter.wait, timeout=60)
        stack.callback(exporter.send_signal, signal.SIGTERM)
        assert exporter.stdout is not None
        scraped = re.findall(r"http://([^/]+)/metrics", exporter.stdout.readline())[0]
        (directory / "remote").mkdir()
        site = stack.enter_context(closing(RemoteSite(world, directory / "remote")))
        site.up()
        world.running("cat", mode="mps", cores=20, memory_mib=1024)
        tenant, _ = world.running(hold, "10", "1", isolation="brokered", memory_mib=1024, cores=20)
        until(lambda: tenant.says("held"), what="the worker to hold memory")

        assert world.daemon is not None
        every = processes_of(world.home, world.daemon.pid, site.pid, exporter.pid)
        found = {listening for pid in every for listening in listening_of(pid)}
        tcp = {
            "console and API over TCP": console,
            "exporter": scraped,
            "server of remote devices": site.address,
        }
        named = {listening: _row_of(listening, table, tcp) for listening in found}
        assert {listening for listening, name in named.items() if not name} == set(), "SECURITY.md does not have these"
        expected = {row.name for row in table} - ELSEWHERE - {KEEPER}
        assert expected - set(named.values()) == set(), "these do not listen: the table says more than there is"
        wrong = [
            (listening.where, row.name)
            for row in table
            for listening, name in named.items()
            if name == row.name and listening.where.startswith("/") and not _as_it_says(row, listening.where)
        ]
        assert wrong == [], "the modes of the table are those of the sockets"
        left = {str(path) for path in world.home.rglob("*") if path.is_socket()} - {found.where for found in named}
        assert left == set(), "every socket of the home is one that was looked at"


def test_a_pool_without_options_listens_on_its_own_sockets_and_one_loopback_address(directory: Path) -> None:
    """The pool is started as the README's demo does: features that are off by default do not listen."""
    with closing(World(directory / "home", options=("--console", "127.0.0.1:0"))) as world:
        world.up()
        console = world.client.get("/v1/status")["console"].removeprefix("http://")
        assert world.daemon is not None
        pids = processes_of(world.home, world.daemon.pid)
        assert {found.where for pid in pids for found in listening_of(pid)} == {
            console,
            str(world.home / "pool.sock"),
            str(world.home / "gateway.sock"),
        }
        assert console.startswith("127.0.0.1:")


def test_the_keeper_of_a_program_in_a_tenants_network_listens_where_the_table_says(tmp_path: Path) -> None:
    (row,) = (row for row in rows(MACHINE) if row.name == KEEPER)
    with closing(PortHost(tmp_path, "d")) as host:
        open_way(tmp_path)
        record = replace(held("one", "red/a/web1"), uid=ANN.uid)
        host.agent.attach(record)
        place = host.agent.place(record)
        assert place is not None
        listener = EntrySockets(host.home).open(record, place, lease="", member=False)
        found = until(
            lambda: {
                listening
                for pid in processes_of(place.directory, *_children())
                for listening in listening_of(pid)
                if listening.where == listener
            },
            what="the keeper to have the socket",
        )
        assert all("calabash.node.ports.entry_keeper" in listening.command for listening in found)
        assert row.has_socket(listener)
        assert _as_it_says(row, listener)
        assert Path(listener).stat().st_uid == ANN.uid


def _children() -> list[int]:
    tasks = Path("/proc/self/task").iterdir()
    return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
