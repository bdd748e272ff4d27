"""Tests of the host of a lease's workers: which connections it serves and refuses, and that no peer can block it."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.native import remote_greetings as hello
from tests.native.remote_world import WORKER, RemoteNode
from tests.native.sim_cuda_programs import program
from tests.native.simnode import until


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RemoteNode]:
    made = RemoteNode(tmp_path / "node.state", "T4", "--sessions", "3")
    yield made
    made.close()


def _works(node: RemoteNode) -> None:
    node.run("sim_cuda_memory", "pool")


def _refused(node: RemoteNode, message: bytes, *descriptors: int) -> int | None:
    with hello.connect(node.socket) as connection:
        hello.send(connection, message, *descriptors)
        return hello.answer(connection)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(hello.greeting(magic=1), id="another magic"),
        pytest.param(hello.greeting(kind=0), id="no kind"),
        pytest.param(hello.greeting(kind=3), id="an unknown kind"),
        pytest.param(hello.greeting(flags=2), id="an unknown flag"),
        pytest.param(hello.greeting(flags=hello.RING), id="a ring without memory"),
        pytest.param(hello.greeting(session=b"s" * 16), id="a local session with a name"),
        pytest.param(hello.greeting(key=b"k" * 32), id="a local session with a key"),
        pytest.param(hello.greeting(hello.HANDOVER), id="a handover of nothing"),
        pytest.param(hello.greeting(hello.HANDOVER, hello.RING), id="a handover of a ring"),
    ],
)
def test_invalid_greeting_is_refused_and_starts_no_worker(node: RemoteNode, message: bytes) -> None:
    assert _refused(node, message) == hello.MALFORMED
    assert node.workers() == []
    _works(node)


def test_greeting_of_another_version_is_refused_as_such(node: RemoteNode) -> None:
    assert _refused(node, hello.greeting(version=2)) == hello.OTHER_VERSION


def test_unexpected_descriptors_are_refused_and_closed(node: RemoteNode) -> None:
    assert _refused(node, hello.greeting(kind=0)) == hello.MALFORMED  # it is up
    before = len(os.listdir(f"/proc/{node.host.pid}/fd"))
    read, write = os.pipe()
    assert _refused(node, hello.greeting(), write) == hello.MALFORMED
    assert _refused(node, hello.greeting(hello.HANDOVER), write, write, write) == hello.MALFORMED
    os.close(write)
    assert os.read(read, 1) == b""  # the last one that could write to it has closed it
    os.close(read)
    until(lambda: len(os.listdir(f"/proc/{node.host.pid}/fd")) <= before, "a descriptor is left over")


@pytest.mark.parametrize(
    ("bytes_", "sealed"),
    [(4096 + (2 << 20), False), (4096, True), (4096 + 3 * (1 << 16), True), (4096 + (2 << 25), True), (0, True)],
    ids=["it may shrink", "empty", "no power of two", "too large", "nothing"],
)
def test_memory_that_is_no_ring_ends_only_its_worker(node: RemoteNode, bytes_: int, sealed: bool) -> None:
    memory = hello.ring(bytes_, sealed=sealed)
    assert _refused(node, hello.greeting(flags=hello.RING), memory) == hello.MALFORMED
    os.close(memory)
    _works(node)


def test_silent_or_incomplete_client_is_disconnected_and_delays_no_other(node: RemoteNode) -> None:
    begun = time.monotonic()
    with hello.connect(node.socket) as silent, hello.connect(node.socket) as half:
        hello.send(half, hello.greeting()[:63])
        _works(node)
        assert hello.answer(silent) == hello.MALFORMED
        assert hello.answer(half) == hello.MALFORMED
    assert time.monotonic() - begun >= 2


def test_greeting_may_arrive_in_pieces(node: RemoteNode) -> None:
    with hello.connect(node.socket) as connection:
        for byte in hello.greeting():
            hello.send(connection, bytes([byte]))
        until(lambda: len(node.workers()) == 1, "no worker was made")


PROGRAM = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
connection.send(bytes.fromhex(sys.argv[2]))
print("sent", flush=True)
sys.stdin.read()
"""


def _stopped_worker_of_an_ended_program(node: RemoteNode) -> int:
    """Return a worker that does not read that its program has ended: it is stopped."""
    words = [sys.executable, "-c", PROGRAM, str(node.socket), hello.greeting().hex()]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "sent\n"
        until(lambda: len(node.workers()) == 1, "no worker was made")
        (worker,) = node.workers()
        os.kill(worker, signal.SIGSTOP)
        other.kill()
    return worker


def test_program_waits_for_the_worker_of_the_program_before_it(node: RemoteNode) -> None:
    former = _stopped_worker_of_an_ended_program(node)
    with hello.connect(node.socket) as connection:
        hello.send(connection, hello.greeting())
        time.sleep(0.3)
        assert node.workers() == [former]
        os.kill(former, signal.SIGCONT)
        until(lambda: len(node.workers()) == 1 and node.workers() != [former], "no worker was made")


def test_program_does_not_wait_longer_for_a_worker_that_does_not_end(node: RemoteNode) -> None:
    former = _stopped_worker_of_an_ended_program(node)
    begun = time.monotonic()
    with hello.connect(node.socket) as first:
        hello.send(first, hello.greeting())
        until(lambda: len(node.workers()) == 2, "the program got no worker")
        assert time.monotonic() - begun >= 1.5
        begun = time.monotonic()
        with hello.connect(node.socket) as second:
            hello.send(second, hello.greeting())
            until(lambda: len(node.workers()) == 3, "the second program got no worker")
        assert time.monotonic() - begun < 1.5
    os.kill(former, signal.SIGCONT)
    until(lambda: not node.workers(), "the workers are still there")


def test_sessions_of_a_lease_are_limited(node: RemoteNode) -> None:
    sessions = [hello.connect(node.socket) for _ in range(3)]
    for connection in sessions:
        hello.send(connection, hello.greeting())
    until(lambda: len(node.workers()) == 3, "three workers were not made")
    assert _refused(node, hello.greeting()) == hello.FULL
    refused = subprocess.run(
        [program("sim_cuda_memory"), "pool"],
        env=node.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert refused.returncode != 0
    assert "the lease has as many sessions as it may have\nhint: end one of its programs" in refused.stderr
    for connection in sessions:
        connection.close()
    until(lambda: not node.workers(), "the workers are still there")
    _works(node)


def test_host_survives_a_thousand_simultaneous_connections(node: RemoteNode) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    crowd = []
    try:
        for _ in range(1000):
            connection = socket.socket(socket.AF_UNIX)
            connection.setblocking(False)
            try:
                connection.connect(str(node.socket))
                hello.send(connection, hello.greeting(kind=7))
            except BlockingIOError:
                pass  # the listener's backlog is full
            crowd.append(connection)
        _works(node)
    finally:
        for connection in crowd:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert node.host.poll() is None


def has_ended(pid: int) -> bool:
    """Return True if the process is gone or waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_workers_end_with_their_host(node: RemoteNode) -> None:
    with hello.connect(node.socket) as connection:
        hello.send(connection, hello.greeting())
        until(lambda: len(node.workers()) == 1, "no worker was made")
        (worker,) = node.workers()
        node.host.kill()
        assert hello.answer(connection) is None
        until(lambda: has_ended(worker), "the worker lives on")


def test_host_ends_with_its_owner(tmp_path: Path) -> None:
    read, write = os.pipe()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "sock"))
        listener.listen(8)
        words = ["--listen", str(listener.fileno()), "--owner", str(read)]
        host = subprocess.Popen([WORKER, *words], pass_fds=[listener.fileno(), read])
    os.close(read)
    with hello.connect(tmp_path / "sock") as connection:
        os.close(write)
        assert host.wait(timeout=60) == 0
        assert hello.answer(connection) is None


def test_only_root_its_own_user_and_the_broker_hand_over_connections(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("another user's connection is made by root only")
    with socket.socket(socket.AF_UNIX) as listener:
        name = f"\0calabash-test-{os.getpid()}"
        listener.bind(name)
        listener.listen(8)
        words = ["--listen", str(listener.fileno()), "--broker-uid", "4711"]
        host = subprocess.Popen([WORKER, *words], pass_fds=[listener.fileno()])
        told = []
        with socket.socket() as passed:
            for uid in (4712, 4711):
                os.seteuid(uid)
                try:
                    with socket.socket(socket.AF_UNIX) as connection:
                        connection.settimeout(60)
                        connection.connect(name)
                        hello.send(connection, hello.greeting(hello.HANDOVER, session=b"s" * 16), passed.fileno())
                        told.append(hello.answer(connection))
                finally:
                    os.seteuid(0)
    host.terminate()
    host.wait(timeout=60)
    assert told == [hello.FORBIDDEN, hello.GREETED]


@pytest.mark.parametrize("words", [[], ["x"], ["--listen"], ["--listen", "-1"], ["--listen", "3", "--sessions", "0"]])
def test_unknown_options_are_reported(words: list[str]) -> None:
    done = subprocess.run([WORKER, *words], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "usage: calabash-worker" in done.stderr


PROFILED = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuProfilerStart() == 201, "there is no context yet"
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
print(cuda.cuProfilerStart(), cuda.cuProfilerStop())
"""


def test_program_may_start_a_profiler(node: RemoteNode) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROFILED],
        capture_output=True,
        text=True,
        env=node.environment(),
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "0 0\n"), done.stderr
