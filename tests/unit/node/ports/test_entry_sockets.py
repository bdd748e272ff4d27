"""Programs that a keeper process of the pool starts in the namespace of their allocation."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.daemons.behind import ForkedCaller, behind
from tests.daemons.users import ANN, BOB, User, open_way
from tests.daemons.world import until
from tests.unit.node.port_world import PortHost, held, may

from calabash.adapters.links import namespaces
from calabash.model.allocation import AllocationRecord
from calabash.node.ports.entry_sockets import EntrySockets

pytestmark = pytest.mark.skipif(not may(), reason="network namespaces need root")
PYTHON = shutil.which("python3", path="/usr/bin:/bin") or ""  # one that every user may start


class Behind:
    """Allocation of a user with a port, and its entry socket."""

    def __init__(self, host: PortHost, user: User | None) -> None:
        self.host = host
        self.user = user
        self.record: AllocationRecord = replace(held("one", "red/a/web1"), uid=user.uid if user else 0)
        host.agent.attach(self.record)
        self.entry_sockets = EntrySockets(host.home)

    def start(self, *command: str, caller: User | None = None) -> ForkedCaller:
        """Run ``command`` as that caller."""
        place = self.host.agent.place(self.record)
        assert place is not None
        path = self.entry_sockets.open(self.record, place, lease="", member=False)
        return behind(path, command, caller or self.user)

    def run(self, *command: str, caller: User | None = None) -> tuple[int, str]:
        return self.start(*command, caller=caller).end()

    def python(self, source: str) -> str:
        code, said = self.run(PYTHON, "-c", source)
        assert code == 0, said
        return said.strip()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[PortHost]:
    made = PortHost(tmp_path, "d")
    open_way(tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["user", "root"])
def placed(host: PortHost, request: pytest.FixtureRequest) -> Behind:
    return Behind(host, ANN if request.param == "user" else None)


@pytest.fixture
def of_ann(host: PortHost) -> Behind:
    return Behind(host, ANN)


def test_program_runs_as_its_caller_with_its_ports_and_no_other_network(placed: Behind) -> None:
    asked = "os.getresuid(), os.getgid(), os.getgroups(), socket.if_nameindex()"
    source = f"import os, socket, json; print(json.dumps([{asked}]))"
    uids, gid, groups, interfaces = json.loads(placed.python(source))
    user = placed.user
    assert uids == [user.uid if user else 0] * 3
    assert gid == (user.gid if user else 0)
    assert groups == ([] if user else os.getgroups())
    assert sorted(name for _, name in interfaces if not name.startswith(("sit", "gre", "ip6", "tun", "erspan"))) == [
        "eth0",
        "lo",
    ]


def test_program_uses_the_resolvers_of_its_vpc_and_the_host_keeps_its_own(of_ann: Behind) -> None:
    before = Path("/etc/resolv.conf").read_bytes() if Path("/etc/resolv.conf").exists() else None
    if before is None:
        pytest.skip("the machine has no /etc/resolv.conf to be hidden")
    assert of_ann.run("cat", "/etc/resolv.conf")[1] == "search a.red.internal\nnameserver 10.7.0.1\n"
    assert Path("/etc/resolv.conf").read_bytes() == before


def test_exit_code_signals_and_output_of_the_program_reach_the_caller(of_ann: Behind) -> None:
    assert of_ann.run("sh", "-c", "exit 7")[0] == 7
    assert of_ann.run("sh", "-c", "kill -9 $$")[0] == 128 + 9
    code, said = of_ann.run("no-such-program")
    assert (code, "not found" in said) == (127, True)
    echo = of_ann.start("cat")
    os.write(echo.stdin, b"what it is told\n")
    assert echo.says() == "what it is told"
    assert echo.end() == (0, "")


def test_signal_to_the_caller_is_forwarded_to_the_program(of_ann: Behind) -> None:
    started = of_ann.start("sh", "-c", "trap 'exit 42' TERM; echo ready; while :; do read line; done")
    assert started.says() == "ready"
    os.kill(started.pid, signal.SIGTERM)
    assert started.end()[0] == 42


def test_program_ends_when_its_caller_is_killed(of_ann: Behind) -> None:
    started = of_ann.start("sh", "-c", "echo $$; exec sleep 600")
    program = int(started.says())
    os.kill(started.pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{program}").exists(), what="the program to end")
    started.end()


def test_program_ends_when_its_keeper_is_killed(of_ann: Behind) -> None:
    started = of_ann.start("sh", "-c", "echo $$; exec sleep 600")
    program = int(started.says())
    keeper = int(Path(f"/proc/{program}/stat").read_text().rsplit(")", 1)[1].split()[1])
    assert b"node.ports.entry_keeper" in Path(f"/proc/{keeper}/cmdline").read_bytes()
    os.kill(keeper, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{program}").exists(), what="the program to end")
    assert started.end()[0] != 0


def test_connection_of_another_user_is_closed(of_ann: Behind) -> None:
    code, said = of_ann.run("id", "-u", caller=BOB)
    assert code != 0
    assert "could not be started" in said


def test_caller_without_descriptors_gets_an_error(of_ann: Behind) -> None:
    place = of_ann.host.agent.place(of_ann.record)
    assert place is not None
    record = replace(of_ann.record, uid=0)
    path = of_ann.entry_sockets.open(record, place, lease="", member=False)
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(path)
        caller.sendall(b"\0" + b"x" * 100)
        caller.settimeout(60)
        said = json.loads(caller.recv(4096))
    assert "sent no standard input, output and error" in said["message"]


# -- a hostile program ---------------------------------------------------------------------------------------------

TRIES = """
import ctypes, json, os, socket
libc = ctypes.CDLL(None, use_errno=True)
NEWNET = 0x40000000
here = os.stat('/proc/self/ns/net').st_ino
done = []
for pid in [p for p in os.listdir('/proc') if p.isdigit()]:
    try:
        fd = os.open(f'/proc/{pid}/ns/net', os.O_RDONLY)
    except OSError:
        continue
    if os.fstat(fd).st_ino != here and libc.setns(fd, NEWNET) == 0:
        done.append(f'entered the namespace of {pid}')
    os.close(fd)
for pid in (1, os.getppid()):
    fd = os.pidfd_open(pid)
    if libc.setns(fd, NEWNET) == 0:
        done.append(f'entered by pidfd {pid}')
    os.close(fd)
for name in os.listdir('/run/netns'):
    try:
        fd = os.open(f'/run/netns/{name}', os.O_RDONLY)
    except OSError:
        continue
    if os.fstat(fd).st_ino != here and libc.setns(fd, NEWNET) == 0:
        done.append(f'entered {name}')
    os.close(fd)
status = open('/proc/self/status').read()
caps = {l.split(':')[0]: int(l.split(':')[1], 16) for l in status.splitlines() if l.startswith('Cap')}
for name, value in caps.items():
    for number in (12, 21, 19, 16, 22):  # NET_ADMIN, SYS_ADMIN, SYS_PTRACE, SYS_MODULE, SYS_BOOT
        if value >> number & 1:
            done.append(f'{name} has {number}')
if 'NoNewPrivs:\\t1' not in status:
    done.append('may gain rights')
open_files = {}
for fd in os.listdir('/proc/self/fd'):
    try:
        open_files[fd] = os.readlink(f'/proc/self/fd/{fd}')
    except OSError:
        pass
done += [f'{fd} is {what}' for fd, what in open_files.items() if int(fd) > 2 and not what.startswith('/proc')]
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    import fcntl, struct
    try:
        fcntl.ioctl(s, 0x8914, struct.pack('16sH', b'eth0', 0))  # SIOCSIFFLAGS
        done.append('changed eth0')
    except OSError:
        pass
try:
    with socket.create_connection(('127.0.0.1', PORT), 2):
        done.append('reached the host')
except OSError:
    pass
try:
    with socket.socket(socket.AF_UNIX) as s:
        s.connect('\\0ABSTRACT')
        done.append('reached an abstract socket of the host')
except OSError:
    pass
# in a user namespace of its own it may be anything, but not there
if libc.unshare(0x10000000) == 0:
    for pid in (1, os.getppid()):
        try:
            fd = os.open(f'/proc/{pid}/ns/net', os.O_RDONLY)
        except OSError:
            continue
        if libc.setns(fd, NEWNET) == 0:
            done.append('left by a user namespace')
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            fcntl.ioctl(s, 0x8914, struct.pack('16sH', b'eth0', 0))
            done.append('changed eth0 in a user namespace')
        except OSError:
            pass
print(json.dumps(done))
"""


def test_program_cannot_reach_the_hosts_network(placed: Behind) -> None:
    name = f"calabash-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0{name}")
        abstract.listen()
        port = listening.getsockname()[1]
        source = TRIES.replace("PORT", str(port)).replace("ABSTRACT", name)
        assert json.loads(placed.python(source)) == []


def test_set_uid_program_gives_no_way_to_the_hosts_network(of_ann: Behind, tmp_path: Path) -> None:
    own = tmp_path / "id"
    own.write_bytes(Path("/usr/bin/id").read_bytes())
    own.chmod(0o4755)
    assert of_ann.run(str(own), "-u")[1].strip() == str(ANN.uid)


def test_process_left_in_the_namespace_has_no_network_after_the_end(of_ann: Behind) -> None:
    host = of_ann.host
    started = of_ann.start("sh", "-c", "echo $$; exec sleep 600")
    program = int(started.says())
    host.agent.leave(of_ann.record)
    host.agent.round([])
    assert host.left() == []
    inside = Path(f"/proc/{program}/ns/net")
    names = namespaces.inside(inside, lambda: [name for _, name in socket.if_nameindex()])
    assert "eth0" not in names
    os.kill(program, signal.SIGKILL)
    started.end()
