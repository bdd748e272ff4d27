"""Tests of failures of a program's connection, worker or server: they cause a delay or one correct error, never a hang."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.native.remote_connections import KEY, CuttableProxy, MinimalBroker, lease_file
from tests.native.remote_world import DirectServer, RemoteNode
from tests.native.simnode import until

from calabash.adapters.host.readable import readable

UNAVAILABLE, ILLEGAL = "46", "700"
SECRET = 0x485553485F5F5F21
SLOW_S = 90  # of a busy machine; without the bounds of the product the kernel takes a quarter of an hour
ATTEMPT_S = 5  # to connect again, which may begin just before the grace is over
LOST = "calabash: the connection to the GPU is lost"


class Program:
    """A running `sim_cuda_faults`, and its output."""

    def __init__(self, node: RemoteNode, remote: str, *, prefix: Sequence[str] = (), **extra: str) -> None:
        self.told = node.state.with_name(f"told-{len(list(node.state.parent.glob('told-*')))}")
        with self.told.open("w") as told:
            self._process = node.start_with(
                "sim_cuda_faults", stderr=told, prefix=prefix, CALABASH_REMOTE=remote, **extra
            )

    def send_line(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        assert self._process.stdout is not None
        assert readable(self._process.stdout.fileno(), 120), "it hangs"
        return self._process.stdout.readline().strip()

    def ask(self, line: str) -> str:
        self.send_line(line)
        return self.answer()

    def said(self) -> str:
        return self.told.read_text()

    def end(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(timeout=60)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@dataclass
class ServerBehindProxy:
    """A server behind a connection that can be cut."""

    node: RemoteNode
    broker: MinimalBroker
    line: CuttableProxy
    directory: Path

    def remote(self, *, key: bytes = KEY, grace_s: int = 60) -> str:
        return f"file:{lease_file(self.directory / f'lease-{grace_s}', self.line.port, key=key, grace_s=grace_s)}"

    def program(self, *, grace_s: int = 60, silence_s: int = 10) -> Program:
        return Program(self.node, self.remote(grace_s=grace_s), CALABASH_REMOTE_SILENCE_S=str(silence_s))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RemoteNode]:
    made = RemoteNode(tmp_path / "node.state", "A100-40GB")
    yield made
    made.close()


@pytest.fixture
def far(node: RemoteNode, tmp_path: Path) -> Iterator[ServerBehindProxy]:
    broker = MinimalBroker(node.socket)
    line = CuttableProxy(broker.port)
    yield ServerBehindProxy(node, broker, line, tmp_path)
    line.close()
    broker.close()


def _cut_while(program: Program, far: ServerBehindProxy, command: str, bytes_: int) -> None:
    """Cut the connection for a second while the program does this."""
    before = far.line.passed
    program.send_line(command)
    until(lambda: far.line.passed > before + bytes_, "nothing passes")
    far.line.cut()
    time.sleep(1.0)  # without a connection
    far.line.mend()


@pytest.mark.parametrize(("command", "bytes_"), [("copies 8", 40 << 20), ("launches 200000", 4 << 20)])
def test_short_disconnection_during_work_is_only_a_delay(far: ServerBehindProxy, command: str, bytes_: int) -> None:
    program = far.program()
    for _ in range(2):
        _cut_while(program, far, command, bytes_)
        assert program.answer() == "same"
    assert program.ask("alloc") == "0"
    assert len(far.broker.handed) >= 3
    assert len(set(far.broker.handed)) == 1
    assert program.end() == 0
    assert program.said() == ""
    far.node.wait_for_workers()


def test_short_disconnection_while_idle_is_not_noticed(far: ServerBehindProxy) -> None:
    program = far.program()
    far.line.cut()
    far.line.mend()
    assert program.ask("copies 1") == "same"
    assert program.end() == 0
    far.node.wait_for_workers()


def test_disconnection_longer_than_the_grace_period_ends_both_sides(far: ServerBehindProxy) -> None:
    program = far.program(grace_s=1)
    assert program.ask("copies 1") == "same"
    far.line.cut()
    assert program.ask("sync") == UNAVAILABLE
    assert program.ask("alloc") == UNAVAILABLE
    assert program.said() == f"{LOST}\n"
    until(lambda: not far.node.workers(), "the worker waits longer than it should")
    assert program.end() == 0
    assert far.node.device()["used_bytes"] == 0


def test_program_does_not_wait_for_an_ended_worker(far: ServerBehindProxy) -> None:
    program = far.program()
    (worker,) = far.node.workers()
    os.kill(worker, signal.SIGKILL)
    assert program.ask("sync") == UNAVAILABLE
    assert program.said() == f"{LOST}\n"
    program.kill()


def test_client_without_the_key_gets_no_device(far: ServerBehindProxy) -> None:
    broker, remote = far.broker, far.remote(key=bytes(31) + b"\1")
    done = subprocess.run(
        [*far.node.command("sim_cuda_faults")],
        env=far.node.environment(CALABASH_REMOTE=remote),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert "calabash: the server refused the key of lease" in done.stderr
    assert "gave 100" in done.stderr  # CUDA_ERROR_NO_DEVICE
    assert len(broker.handed) == 1
    until(lambda: not far.node.workers(), "a worker is left over")


def test_session_is_encrypted_on_the_wire(node: RemoteNode, tmp_path: Path) -> None:
    seen: list[bytes] = []
    broker = MinimalBroker(node.socket)

    class Listening(CuttableProxy):
        def _carry(self, one: socket.socket, other: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := one.recv(1 << 16):
                    seen.append(data)
                    other.sendall(data)
                other.shutdown(socket.SHUT_WR)

    line = Listening(broker.port)
    program = Program(node, f"file:{lease_file(tmp_path / 'lease', line.port)}")
    address = program.ask(f"put {SECRET}")
    assert program.ask(f"look {address}") == f"0 {SECRET}"
    assert program.end() == 0
    everything = b"".join(seen)
    assert len(everything) > 1000
    assert SECRET.to_bytes(8, "little") not in everything
    assert KEY not in everything
    line.close()
    broker.close()


@pytest.mark.parametrize("kind", ["unix", "socket"])
def test_crash_of_a_worker_ends_only_its_session(node: RemoteNode, kind: str) -> None:
    one, other = (Program(node, f"{kind}:{node.socket}") for _ in range(2))
    first = node.workers()[0]
    os.kill(first, signal.SIGKILL)
    assert one.ask("sync") == UNAVAILABLE
    assert one.ask("alloc") == UNAVAILABLE
    assert one.said() == f"{LOST}\n"
    assert other.ask("copies 1") == "same"
    assert other.end() == 0


def test_illegal_address_fails_only_its_session(node: RemoteNode) -> None:
    one, other = (Program(node, f"unix:{node.socket}") for _ in range(2))
    assert one.ask("illegal") == ILLEGAL
    assert one.ask("alloc") == ILLEGAL
    assert other.ask("copies 1") == "same"
    assert Program(node, f"unix:{node.socket}").ask("copies 1") == "same"


def test_session_cannot_read_memory_of_another(node: RemoteNode) -> None:
    one, other = (Program(node, f"unix:{node.socket}") for _ in range(2))
    address = one.ask(f"put {SECRET}")
    assert one.ask(f"look {address}") == f"0 {SECRET}"
    result, word = other.ask(f"look {address}").split()
    assert int(word) != SECRET
    assert result in ("0", "1", ILLEGAL)


def test_absent_server_is_reported_at_once(node: RemoteNode, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    for remote, why in {
        f"tcp:127.0.0.1:{port}": f"cannot reach 127.0.0.1:{port}: Connection refused",
        f"unix:{tmp_path}/nobody": f"cannot reach {tmp_path}/nobody: No such file or directory",
        f"file:{tmp_path}/none": f"cannot read the lease in {tmp_path}/none: No such file or directory",
        "carrier:pigeon": "CALABASH_REMOTE is carrier:pigeon, none of unix:PATH, file:PATH and tcp:HOST:PORT",
    }.items():
        done = subprocess.run(
            node.command("sim_cuda_faults"),
            env=node.environment(CALABASH_REMOTE=remote),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert f"calabash: {why}" in done.stderr


class OtherVersions(CuttableProxy):
    """A proxy that changes the protocol version that each end sends."""

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        version = 7 if other.getpeername()[1] == self._to else 9
        seen = b""
        try:
            while len(seen) < 32 and (data := one.recv(1 << 16)):
                seen += data
            other.sendall(seen[:24] + version.to_bytes(8, "little") + seen[32:])
        except OSError:
            return
        super()._carry(one, other)


def test_server_of_another_version_is_refused_with_both_versions(node: RemoteNode) -> None:
    broker = DirectServer(node)
    line = OtherVersions(broker.port)
    done = subprocess.run(
        node.command("sim_cuda_faults"),
        env=node.environment(CALABASH_REMOTE=f"tcp:127.0.0.1:{line.port}"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert "calabash: this client (protocol 2, table " in done.stderr
    assert "and the server (protocol 9, table " in done.stderr
    assert "hint: install the same version on both" in done.stderr
    line.close()
    broker.close()


@dataclass
class FarMachine:
    """A network namespace joined to this one by a virtual link; ``host`` is our end of it."""

    name: str
    host: str

    def fall_silent(self) -> None:
        """Drop all traffic without telling either end."""
        subprocess.run(["ip", "link", "set", self.name, "down"], check=True)


@pytest.fixture
def far_machine() -> Iterator[FarMachine]:
    number = os.getpid() % 0x4000
    name, net = f"cb{os.getpid()}", f"10.213.{number >> 6}.{{}}".format
    here, there = (net((number & 63) * 4 + end) for end in (1, 2))
    for command in (
        f"ip netns add {name}",
        f"ip link add {name} type veth peer name line netns {name}",
        f"ip address add {here}/30 dev {name}",
        f"ip link set {name} up",
        f"ip -n {name} address add {there}/30 dev line",
        f"ip -n {name} link set line up",
    ):
        subprocess.run(command.split(), check=True)
    yield FarMachine(name, here)
    for command in (f"ip link del {name}", f"ip netns del {name}"):
        subprocess.run(command.split(), check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a network of its own")
@pytest.mark.parametrize("busy", [True, False])
def test_silent_peer_is_detected_within_ten_seconds(
    node: RemoteNode, far_machine: FarMachine, tmp_path: Path, busy: bool
) -> None:
    broker = MinimalBroker(node.socket, host=far_machine.host)
    lease = lease_file(tmp_path / "lease", broker.port, host=far_machine.host, grace_s=1)
    prefix = ("ip", "netns", "exec", far_machine.name)
    program = Program(node, f"file:{lease}", prefix=prefix)
    assert program.ask("copies 1") == "same"
    far_machine.fall_silent()
    silent_at = time.monotonic()
    if busy:
        assert program.ask("sync") == UNAVAILABLE
        assert time.monotonic() - silent_at < 10 + ATTEMPT_S + SLOW_S
        assert program.said() == f"{LOST}\n"
    until(lambda: not node.workers(), "the worker waits longer than it should")
    assert time.monotonic() - silent_at < 10 + 1 + SLOW_S
    assert node.device()["used_bytes"] == 0
    program.kill()
    broker.close()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "server, lease or key is missing"),
        ("server=a:1\nlease=12\n", "server, lease or key is missing"),
        ("server=a:1\nlease=12\nkey=" + "0" * 64, "server, lease or key is missing"),
        ("server=a:1\nlease=XY\n", "line 2 is invalid"),
        ("server=a:1\nlease=" + "1" * 65, "line 2 is invalid"),
        ("# ours\n\nserver\n", "line 3 is invalid"),
        ("server=a:1\nkey=12\n", "line 2 is invalid"),
        ("grace_s=-1\n", "line 1 is invalid"),
        ("grace_s=3601\n", "line 1 is invalid"),
        ("x" * 5000, "it is longer than 4096 bytes"),
    ],
)
def test_invalid_lease_file_is_named(node: RemoteNode, tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "lease"
    path.write_text(text)
    done = subprocess.run(
        node.command("sim_cuda_faults"),
        env=node.environment(CALABASH_REMOTE=f"file:{path}"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert f"calabash: {path} is not a lease file: {why}\n" in done.stderr


def test_program_waits_for_a_stalled_reader(node: RemoteNode) -> None:
    program = Program(node, f"unix:{node.socket}")
    (worker,) = node.workers()
    os.kill(worker, signal.SIGSTOP)
    program.send_line("launches 300000")  # more than the ring and the line hold
    timer = threading.Timer(1.0, os.kill, (worker, signal.SIGCONT))
    timer.start()
    assert program.answer() == "same"
    timer.join()
    assert program.end() == 0


def _stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    tasks = list(Path(f"/proc/{pid}/task").glob("*/stat"))
    until(lambda: all(task.read_text().rpartition(") ")[2].startswith("T") for task in tasks), "it does not stop")


@pytest.mark.parametrize("command", ["alloc", "launches 300000", "copies 4"])
def test_stopped_worker_is_given_up_after_the_grace_period(far: ServerBehindProxy, command: str) -> None:
    near = Program(far.node, f"unix:{far.node.socket}", CALABASH_REMOTE_SILENCE_S="4", CALABASH_REMOTE_GRACE_S="1")
    distant = far.program(grace_s=1, silence_s=4)
    for program in (near, distant):
        assert program.ask("copies 1") == "same"
    workers = far.node.workers()
    for worker in workers:
        _stop(worker)
    for program in (near, distant):
        program.send_line(command)
    assert near.answer() == UNAVAILABLE
    assert distant.answer() == UNAVAILABLE
    assert near.said() == f"{LOST}: its worker has said nothing for too long\n"
    assert distant.said() == f"{LOST}\n"
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    for program in (near, distant):
        program.kill()


def test_worker_that_continues_within_the_grace_period_is_reconnected(far: ServerBehindProxy) -> None:
    program = far.program(silence_s=4)
    (worker,) = far.node.workers()
    _stop(worker)
    program.send_line("launches 300000")
    until(lambda: len(far.broker.handed) > 1, "nobody notices that the worker is stopped")
    os.kill(worker, signal.SIGCONT)
    assert program.answer() == "same"
    assert program.end() == 0
    assert program.said() == ""


def test_program_waits_for_a_busy_worker(far: ServerBehindProxy) -> None:
    near = Program(far.node, f"unix:{far.node.socket}", CALABASH_REMOTE_SILENCE_S="5", CALABASH_REMOTE_GRACE_S="0")
    distant = far.program(silence_s=5)
    for program in (near, distant):
        program.send_line("busy 8000")
    for program in (near, distant):
        assert program.answer() == "same"
        assert program.end() == 0
        assert program.said() == ""
    assert len(far.broker.handed) == 1  # it did not even connect again
