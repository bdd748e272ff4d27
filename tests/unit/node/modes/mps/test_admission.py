"""Admission socket of an MPS service: one program at a time, identified by the kernel, with bounded waits."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from calabash.adapters.gpu.nvidia.mps import MpsControl, ServerStatus
from calabash.adapters.host.processes import identify
from calabash.model.request import AllocationId
from calabash.node.modes.mps import admission as mps_admission
from calabash.node.modes.mps.admission import AdmissionSocket
from calabash.node.processes.inherited import PoolProcesses

BOUND_S = 60.0
ONE = AllocationId("one")


class SocketWorld:
    """An admission socket, with a record of what it admits."""

    def __init__(self, home: Path) -> None:
        self.owner: AllocationId | None = ONE
        self.inside: list[AllocationId] = []
        self.at_once = 0
        self.reported: list[tuple[AllocationId, int, int]] = []
        self.changed = threading.Condition()
        self.admission_socket = AdmissionSocket(home / "door/knock", allocation_of=lambda _: self.owner, admission=self)

    @contextmanager
    def admitted(self, allocation: AllocationId, pid: int) -> Iterator[bool]:
        assert pid == os.getpid()
        self.inside.append(allocation)
        self.at_once = max(self.at_once, len(self.inside))
        try:
            yield allocation == ONE
        finally:
            self.inside.remove(allocation)

    def joined(self, allocation: AllocationId, pid: int, multiprocessors: int) -> None:
        with self.changed:
            self.reported.append((allocation, pid, multiprocessors))
            self.changed.notify_all()

    def wait(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.reported) >= count, BOUND_S)

    def knock(self) -> socket.socket:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        peer.settimeout(BOUND_S)
        peer.connect(str(self.admission_socket.path))
        return peer


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SocketWorld]:
    made = SocketWorld(tmp_path)
    yield made
    made.admission_socket.close()


def test_program_is_admitted_and_reports_its_multiprocessors(world: SocketWorld) -> None:
    with world.knock() as peer:
        assert peer.recv(16) == b"go"
        peer.send(b"sms 54")
    world.wait(1)
    assert world.reported == [(ONE, os.getpid(), 54)]


def test_programs_are_admitted_one_at_a_time(world: SocketWorld) -> None:
    peers = [world.knock() for _ in range(5)]
    for peer in peers:
        assert peer.recv(16) == b"go"
        peer.send(b"sms 1")
        peer.close()
    world.wait(5)
    assert world.at_once == 1


@pytest.mark.parametrize("owner", [None, AllocationId("two")], ids=["nobody's", "of another card"])
def test_program_without_an_allocation_is_not_admitted(world: SocketWorld, owner: AllocationId | None) -> None:
    world.owner = owner
    with world.knock() as peer:
        assert peer.recv(16) == b""
    assert world.reported == []


def test_malformed_report_counts_as_none(world: SocketWorld) -> None:
    for said in (b"sms -1", b"sms 99999999", b"\xff\x00", b"x" * 64):
        with world.knock() as peer:
            assert peer.recv(16) == b"go"
            peer.send(said)
    world.wait(4)
    assert {multiprocessors for _, _, multiprocessors in world.reported} == {0}


def test_admitted_program_that_does_not_join_is_refused_for_a_time(
    world: SocketWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps_admission, "JOIN_S", 0.05)
    with world.knock() as lingers:
        assert lingers.recv(16) == b"go"
        world.wait(1)
        with world.knock() as again:
            assert again.recv(16) == b""
    assert world.reported == [(ONE, os.getpid(), 0)]


# -- what an earlier pool left --------------------------------------------------------------------------------------


def test_adopted_process_belongs_to_the_pool_and_a_later_one_with_its_pid_does_not() -> None:
    own, parent = PoolProcesses(), identify(os.getppid())
    assert own.has(os.getpid())
    assert not own.has(os.getppid())
    assert parent is not None
    own.add(parent)
    assert own.has(os.getppid())


# -- what a daemon answers -------------------------------------------------------------------------------------------


class Said(MpsControl):
    """Daemon that answers from a list."""

    def __init__(self, directory: Path, *answers: str) -> None:
        super().__init__(directory, "GPU-1", {})
        self.answers = list(answers)

    def ask(self, *commands: str) -> str:
        del commands
        return self.answers.pop(0)


def test_state_of_a_server_is_parsed_with_its_clients(tmp_path: Path) -> None:
    state = Said(tmp_path, "FAULT\n12\n34\n").server_state(7)
    assert state is not None
    assert (state.status, state.clients) == (ServerStatus.FAULT, (12, 34))
    assert Said(tmp_path, "Failed to find server 7\n").server_state(7) is None


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        ("30.0\n8G\n", (30.0, 8192)),
        ("12.5\n900M\n", (12.5, 900)),
        ("100.0\nunlimited\n", (100.0, 0)),
        ("12.5\nwhat a newer driver says\n30.0\n8G\n", (30.0, 8192)),
        ("\n", (-1.0, -1)),
    ],
)
def test_share_of_a_server_is_parsed(tmp_path: Path, answer: str, share: tuple[float, int]) -> None:
    assert Said(tmp_path, answer).share(7) == share


def test_server_that_reports_another_share_than_set_is_detected(tmp_path: Path) -> None:
    for also_next in (False, True):
        good, bad = Said(tmp_path, "30.0\n30.0\n8G\n"), Said(tmp_path, "30.0\n100.0\nunlimited\n")
        assert good.set_share(7, percent=30, memory_mib=8192, also_next=also_next) == ""
        assert "100%" in bad.set_share(7, percent=30, memory_mib=8192, also_next=also_next)


def test_faulting_client_is_read_once_from_the_log_of_the_server(tmp_path: Path) -> None:
    control = Said(tmp_path)
    assert control.faulting_client() == 0
    control.log.mkdir()
    log = control.log / "server.log"
    log.write_text("[x Server 1] New client 4711 connected\n")
    assert control.faulting_client() == 0
    with log.open("a") as file:
        file.write("[x Server 1] Client {3, 4711} encountered a fatal fault on device GPU-1\n")
    assert control.faulting_client() == 4711
    assert control.faulting_client() == 0
    log.write_text("[x Server 1] Client {0, 12} encountered a fatal fault on device GPU-1\n")  # begun anew, and shorter
    assert control.faulting_client() == 12
