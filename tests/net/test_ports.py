"""Tests of programs with ports of tenant networks on hosts of a lab, with a real pool, OVN and packets."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.api_client import PathClient
from tests.daemons.behind import ForkedCaller
from tests.daemons.remote import _words
from tests.daemons.terminal import Terminal
from tests.daemons.users import ANN, EVE, as_user
from tests.daemons.world import until
from tests.net.networked import SLICE, Networked

from calabash.adapters.links import namespaces
from calabash.cli.main import main
from calabash.controllers.lab.lab import Lab
from calabash.model.errors import Reason

HOSTS, GATEWAYS = ("h1", "h2"), ()
WITHIN_S = 90.0
PYTHON = shutil.which("python3", path="/usr/bin:/bin") or ""

SERVER = """
import socket, sys, threading
listening = socket.create_server(('', 8000))
def serve():
    while True:
        client, peer = listening.accept()
        threading.Thread(target=talk, args=(client, peer), daemon=True).start()
def talk(client, peer):
    client.sendall(f'hello {peer[0]}'.encode())
    while data := client.recv(100):
        client.sendall(data)
threading.Thread(target=serve, daemon=True).start()
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
    asked.connect(('10.0.1.1', 9))
    print(asked.getsockname()[0], flush=True)
sys.stdin.readline()
"""
CLIENT = """
import socket, sys
with socket.create_connection((sys.argv[1], 8000), 60) as client:
    print(client.recv(100).decode())
"""
TALKER = """
import socket, sys
with socket.create_connection((sys.argv[1], 8000), 60) as client:
    client.recv(100)
    print('talking', flush=True)
    while sys.stdin.readline():
        client.sendall(b'still there?')
        client.settimeout(60)
        print('answered' if client.recv(100) == b'still there?' else 'nothing', flush=True)
"""


@pytest.fixture(scope="module")
def networked(lab: Lab) -> Iterator[Networked]:
    made = Networked(lab)
    yield made
    made.close()


@pytest.fixture
def pool(networked: Networked) -> Iterator[Networked]:
    yield networked
    networked.clean()


def test_program_is_inside_its_port_and_reaches_another_of_its_vpc_by_name(pool: Networked) -> None:
    server = pool.run(PYTHON, "-c", SERVER)
    assert server.says() == "10.0.1.11"
    asking = pool.run(PYTHON, "-c", CLIENT, "web1.a.red.internal", ports=["red/a/web2"])
    assert asking.end() == (0, "hello 10.0.1.12\n")
    until(lambda: len(pool.world.allocations()) == 1, what="the one that has asked to be given back")
    (allocation,) = pool.world.allocations()
    assert allocation["state"] == "running"
    (pid,) = allocation["pids"]
    assert "python3" in Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    assert "CALABASH_SLOT" in Path(f"/proc/{pid}/environ").read_text()
    os.write(server.stdin, b"end\n")
    assert server.end()[0] == 0
    until(lambda: not pool.left(), what="everything to be gone")


def test_port_is_held_by_one_program_at_a_time_and_free_when_that_has_ended(pool: Networked) -> None:
    first = pool.run("cat")
    until(lambda: pool.world.allocations() and pool.world.allocations()[0]["pids"], what="the first to run")
    code, said = pool.run("true").end()
    assert code == 1
    assert f"refused {Reason.CONFLICT}: port red/a/web1 is held by" in said
    assert first.end()[0] == 0
    assert pool.run("true").end() == (0, "")


def test_user_has_ports_of_its_own_tenant_and_nobody_elses(pool: Networked) -> None:
    def make() -> None:
        client = PathClient(pool.world.home)
        for kind, name, spec in (
            ("vpc", "anns", {"cidrs": ["10.0.0.0/16"]}),
            ("subnet", "anns/a", {"cidrs": ["10.0.1.0/24"]}),
            ("port", "anns/a/web1", {"addresses": ["10.0.1.11"]}),
        ):
            client.put("/v1/networks/objects", {"kind": kind, "name": name, "spec": spec})

    as_user(ANN, make)
    code, said = pool.run("id", "-u", user=ANN, ports=["anns/a/web1"]).end()
    assert (code, said) == (0, f"{ANN.uid}\n")
    code, said = pool.run("id", "-u", user=ANN).end()
    assert code == 1
    assert f"refused {Reason.NOT_FOUND}" in said


def test_brokered_program_is_inside_its_port_too(pool: Networked) -> None:
    source = "import os, socket; print(sorted(n for _, n in socket.if_nameindex())[0], 'CALABASH_SLOT' in os.environ)"
    assert pool.run(PYTHON, "-c", source, isolation="brokered").end() == (0, "eth0 False\n")
    until(lambda: not pool.left(), what="everything to be gone")


def test_job_has_ports_too(pool: Networked) -> None:
    def submit() -> str:
        client = PathClient(pool.world.home)
        for kind, name, spec in (
            ("vpc", "eves", {"cidrs": ["10.0.0.0/16"]}),
            ("subnet", "eves/a", {"cidrs": ["10.0.1.0/24"]}),
            ("port", "eves/a/web1", {"addresses": ["10.0.1.11"]}),
        ):
            client.put("/v1/networks/objects", {"kind": kind, "name": name, "spec": spec})
        source = "import socket; print(sorted(n for _, n in socket.if_nameindex())[0])"
        order = {"command": [PYTHON, "-c", source], "ports": ["eves/a/web1"], **SLICE}
        return str(client.post("/v1/jobs", order)["job"]["id"])

    name = as_user(EVE, submit)
    until(lambda: pool.world.client.get(f"/v1/jobs/{name}")["job"]["ended_at"], what="the job to end")
    told = pool.world.client.get(f"/v1/jobs/{name}")
    assert (told["job"]["exit_code"], told["output"]) == (0, "eth0\n"), told
    until(lambda: not pool.left(), what="everything to be gone")


@pytest.mark.parametrize("what", ["the program", "its caller"])
def test_program_that_is_killed_leaves_nothing(pool: Networked, what: str) -> None:
    caller = pool.run("sh", "-c", "echo $$; exec sleep 600")
    program = int(caller.says())
    os.kill(program if what == "the program" else caller.pid, signal.SIGKILL)
    until(lambda: not pool.world.allocations(), what="the allocation to end")
    until(lambda: not pool.left(), what="everything to be gone")


def test_pool_that_is_killed_leaves_traffic_as_it_is_and_the_next_one_adopts_it(pool: Networked) -> None:
    server = pool.run(PYTHON, "-c", SERVER)
    assert server.says() == "10.0.1.11"
    talker = pool.run(PYTHON, "-c", TALKER, "10.0.1.11", ports=["red/a/web2"])
    assert talker.says() == "talking"
    before = pool.left()
    pool.world.kill()
    os.write(talker.stdin, b"\n")
    assert talker.says() == "answered"  # the connection of before, with no pool
    pool.world.up()
    until(lambda: len([a for a in pool.world.allocations() if a["pids"]]) == 2, what="both to be adopted")
    assert sorted(pool.left()) == sorted(before)
    os.write(talker.stdin, b"\n")
    assert talker.says() == "answered"
    for caller in (talker, server):
        os.kill(caller.pid, signal.SIGTERM)
        caller.end()
    until(lambda: not pool.left(), what="everything to be gone")


def test_what_ends_while_no_pool_runs_is_removed_by_the_next_one(pool: Networked) -> None:
    caller = pool.run("sh", "-c", "echo $$; exec sleep 600")
    program = int(caller.says())
    pool.world.kill()
    os.kill(program, signal.SIGKILL)
    caller.end()
    assert pool.left()
    pool.world.up()
    until(lambda: not pool.left(), what="everything to be gone")
    assert pool.run("true").end() == (0, "")


def test_port_that_its_host_does_not_carry_out_is_refused_in_time_and_leaves_nothing(pool: Networked) -> None:
    host = pool.lab.host("h1")
    host.kill("ovn-controller")
    try:
        code, said = pool.run("true").end()
    finally:
        host.start("ovn-controller")
    assert code == 1
    assert f"refused {Reason.UNREACHABLE}: OVN has not installed port red/a/web1" in said
    until(lambda: not pool.left(), what="everything to be gone")
    assert not pool.world.allocations()


# -- calabash net check --------------------------------------------------------------------------------------------


@pytest.fixture
def checked(
    pool: Networked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[], tuple[int, dict[str, str]]]:
    """Run ``calabash net check red``; return its exit code, and its result for each promise."""
    monkeypatch.setenv("CALABASH_HOME", str(pool.world.home))

    def check() -> tuple[int, dict[str, str]]:
        code = 0
        try:
            main(["net", "check", "red", "-o", "json"])
        except SystemExit as ended:
            code = int(ended.code or 0)
        told = json.loads(capsys.readouterr().out)["items"]
        return code, {one["promise"]: one["result"] for one in told}

    return check


def test_every_promise_of_a_vpc_is_tried_and_nothing_of_that_is_left(
    pool: Networked, checked: Callable[[], tuple[int, dict[str, str]]]
) -> None:
    pool.put("vpc", "blue", cidrs=["10.0.0.0/16"])  # the same addresses
    pool.put("subnet", "blue/a", cidrs=["10.0.1.0/24"])
    pool.put("port", "blue/a/web1", addresses=["10.0.1.11"])
    pool.put("vpc", "green", cidrs=["10.1.0.0/16"])
    pool.put("subnet", "green/a", cidrs=["10.1.1.0/24"])
    pool.put("peer", "red/green")
    pool.put("peer", "green/red")
    pool.put("qos", "red/slow", egress_bits_per_s=2_000_000)
    pool.put("subnet", "red/a", cidrs=["10.0.1.0/24"], dns=True, dhcp=True)
    code, told = checked()
    assert told == {
        "a port of red/a works on h1": "ok",
        "a port of red/a works on h2": "ok",
        "DNS of red/a knows x-check-1.a.red.internal": "ok",
        "DHCP of red/a offers a port its address": "ok",
        "peering red/green leads there": "ok",
        "a port with red/slow sends at most 2 Mbit/s": "ok",
        "red/a: h1 to h2": "ok",
        "red/a: h1 to h2, 1400 bytes whole": "ok",
        "red/a: a foreign MAC is dropped": "ok",
        "red/a: a foreign address is dropped": "ok",
        f"nothing of red gets into {_others(pool)}": "ok",
    }
    assert code == 0
    ports = [o["name"] for o in pool.world.client.get("/v1/networks/objects?kind=port&vpc=red")["items"]]
    assert sorted(ports) == ["red/a/web1", "red/a/web2"]
    assert pool.left() == []
    assert namespaces.names("calabash-check-") == []


def test_promise_that_does_not_hold_is_named_and_the_exit_code_is_1(
    pool: Networked, checked: Callable[[], tuple[int, dict[str, str]]]
) -> None:
    host = pool.lab.host("h2")
    host.kill("ovn-controller")
    try:
        code, told = checked()
    finally:
        host.start("ovn-controller")
    assert code == 1
    assert told["a port of red/a works"] == "FAILS"
    assert told["a port of red/a works on h1"] == "ok"


def _others(pool: Networked) -> str:
    """Return the number of VPCs with ports beside red, as text."""
    found = {o["name"].split("/")[0] for o in pool.world.client.get("/v1/networks/objects?kind=port")["items"]} - {
        "red"
    }
    return f"{len(found)} other VPC{'' if len(found) == 1 else 's'}"


# -- a server of remote cards inside a tenant's network --------------------------------------------------------------

REMOTE = """
export CALABASH_HOME=$1 HOME=$1
$2 -m calabash.cli.main remote add 10.0.1.20 --token $3 && exec $2 -m calabash.cli.main run --remote --memory 1GiB -- $2 $4
"""
ASKING = """
import socket, sys
try:
    socket.create_connection(('10.0.1.20', 7433), 3).close()
    print('reached')
except OSError:
    print('not reached')
"""


@pytest.fixture
def server(pool: Networked, tmp_path: Path) -> Iterator[tuple[Terminal, Path]]:
    """Start a server that listens at port gpu1 of VPC red; yield its command line and the file of a token."""
    pool.put("port", "red/a/gpu1", addresses=["10.0.1.20"])
    pool.put("vpc", "blue", cidrs=["10.0.0.0/16"])  # the same addresses
    pool.put("subnet", "blue/a", cidrs=["10.0.1.0/24"])
    pool.put("port", "blue/a/web1", addresses=["10.0.1.11"])
    owner = Terminal(pool.world.home, tmp_path)
    owner("remote", "server", "up", "--port", "red/a/gpu1", "--name", "lab01")
    token = tmp_path / "vision.token"
    token.write_text(owner("remote", "server", "token", "create", "vision", "--gpus", "4").stdout)
    token.chmod(0o600)
    yield owner, token
    owner("remote", "server", "down", "--force", code=None)
    owner.close()


def _using(pool: Networked, token: Path, home: Path, isolation: str = "") -> ForkedCaller:
    """Start a program in web2, and return it once it has devices of the server."""
    home.mkdir()
    steps = Path(__file__).parents[1] / "daemons" / "programs" / "remote_steps.py"
    words = ("sh", "-ec", REMOTE, "sh", str(home), sys.executable, str(token), str(steps))
    caller = pool.run(*words, ports=["red/a/web2"], isolation=isolation)
    assert caller.says() == "server lab01 added: 2 cards"
    assert caller.says() == "begun 0 1"
    return caller


def _does(caller: ForkedCaller, step: str) -> str:
    os.write(caller.stdin, f"{step}\n".encode())
    return caller.says()


def test_server_with_a_port_is_reached_from_its_vpc_and_from_nowhere_else(
    pool: Networked, server: tuple[Terminal, Path], tmp_path: Path
) -> None:
    owner, token = server
    assert "10.0.1.20:7433 (red/a/gpu1)" in owner("remote", "server", "status").stdout
    assert "server = 10.0.1.20:7433" in token.read_text()
    using = _using(pool, token, tmp_path / "client")
    assert _does(using, "alloc 64") == "alloc 0"
    assert _does(using, "write") == "write 0"
    assert pool.run(PYTHON, "-c", ASKING, ports=["blue/a/web1"]).end() == (0, "not reached\n")
    assert pool.run(PYTHON, "-c", ASKING).end() == (0, "reached\n")
    with pytest.raises(OSError, match=r"refused|unreachable|timed out"):
        socket.create_connection(("127.0.0.1", 7433), 3)
    code, said = pool.run("true", ports=["red/a/gpu1"]).end()
    assert code == 1
    assert f"refused {Reason.CONFLICT}: port red/a/gpu1 is held by server lab01" in said
    assert using.end()[0] == 0
    owner("remote", "server", "down")
    until(lambda: not pool.left(), what="the port to be given back")
    assert pool.run("true", ports=["red/a/gpu1"]).end() == (0, "")


def test_connections_by_a_port_outlive_kills_of_server_and_pool(
    pool: Networked, server: tuple[Terminal, Path], tmp_path: Path
) -> None:
    owner, token = server
    using = _using(pool, token, tmp_path / "client", isolation="brokered")
    pid = owner.json("remote", "server", "status")["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not _words(pid), what="the server to end")
    assert _does(using, "alloc 64") == "alloc 0"
    pool.world.kill()
    assert _does(using, "write") == "write 0"
    pool.world.up()
    assert _does(using, "write") == "write 0"
    owner("remote", "server", "up", "--port", "red/a/gpu1", "--name", "lab01")
    assert len(pool.world.client.get("/v1/networks/places")["items"]) == 1
    again = ("sh", "-ec", REMOTE.replace("&& exec", "; #"), "sh", str(tmp_path / "client"), sys.executable, str(token))
    assert pool.run(*again, isolation="brokered").end()[1] == "server lab01 added: 2 cards\n"
    assert _does(using, "write") == "write 0"
    assert using.end()[0] == 0
