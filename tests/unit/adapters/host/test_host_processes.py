"""Processes by identity, signals that cannot hit another process, and leases that the kernel holds."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from calabash.adapters.host import files, processes
from calabash.adapters.host.processes import Process
from calabash.model.errors import CalabashError, Reason


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(["sleep", "60"])
    yield started
    started.kill()
    started.wait()


def test_a_process_is_its_pid_and_its_start_time(child: subprocess.Popen[bytes]) -> None:
    found = processes.identify(child.pid)
    assert found is not None
    assert processes.alive(found)
    assert not processes.alive(Process(pid=child.pid, start_time=found.start_time + 1))


def test_a_zombie_is_dead(child: subprocess.Popen[bytes]) -> None:
    found = processes.identify(child.pid)
    assert found is not None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not processes.alive(found)
    assert processes.identify(child.pid) is None


def test_a_signal_for_a_process_that_is_gone_does_not_hit_who_has_its_pid_now(child: subprocess.Popen[bytes]) -> None:
    other = Process(pid=child.pid, start_time=1)
    assert not processes.send_signal(other, signal.SIGKILL)
    assert child.poll() is None
    found = processes.identify(child.pid)
    assert found is not None
    assert processes.send_signal(found, signal.SIGTERM)
    assert child.wait() == -signal.SIGTERM


@pytest.mark.parametrize("pid", [0, -1, 1 << 30])
def test_a_pid_that_cannot_be_is_nobody(pid: int) -> None:
    assert processes.identify(pid) is None


def test_a_name_with_parentheses_does_not_hide_the_start_time(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    started = subprocess.Popen([program, "60"])
    try:
        assert processes.start_time(started.pid) >= processes.start_time(os.getpid()) > 0
    finally:
        started.kill()
        started.wait()


def test_holders_are_those_that_have_the_file_open(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.touch()
    second.touch()
    with first.open() as file, subprocess.Popen(["sleep", "60"], stdin=file) as holder:
        try:
            found = processes.holders([first, second, tmp_path / "none"])
        finally:
            holder.kill()
    assert [p.pid for p in found[first]] == [holder.pid], "and the caller itself is not among them"
    assert found[second] == []
    assert found[tmp_path / "none"] == []


def test_the_peer_of_a_socket_is_told_by_the_kernel() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        peer = processes.peer_of(ours)
    assert (peer.pid, peer.uid, peer.gid) == (os.getpid(), os.geteuid(), os.getegid())


def test_lease_is_held_until_the_last_process_with_its_descriptor_ends(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    path.touch()
    lease = files.Lease(path)
    assert not lease.held()
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    holder = subprocess.Popen(["sleep", "60"], pass_fds=[descriptor])
    os.close(descriptor)
    assert lease.held()
    holder.kill()
    holder.wait()
    assert not lease.held()
    lease.close()


def test_who_takes_a_lease_keeps_others_out_and_looking_does_not(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    path.touch()
    lease, other = files.Lease(path), files.Lease(path)
    assert not lease.held()
    assert other.try_take(), "looking leaves nothing behind"
    assert lease.held()
    other.close()
    assert lease.try_take()
    lease.close()


def test_a_link_in_the_place_of_a_lease_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").touch()
    (tmp_path / "lease").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic"):
        files.Lease(tmp_path / "lease")


def test_only_one_holds_the_pool_lock(tmp_path: Path) -> None:
    first = files.lock_exclusive(tmp_path / "lock")
    assert first is not None
    assert files.lock_exclusive(tmp_path / "lock") is None
    os.close(first)
    second = files.lock_exclusive(tmp_path / "lock")
    assert second is not None
    os.close(second)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_want_of_space_is_a_reason(number: int) -> None:
    with pytest.raises(CalabashError) as caught, files.disk_full_is_a_reason("cannot write"):
        raise OSError(number, os.strerror(number))
    assert caught.value.reason is Reason.DISK_FULL


def test_other_failures_stay_what_they_are() -> None:
    with pytest.raises(PermissionError), files.disk_full_is_a_reason("cannot write"):
        raise PermissionError(errno.EACCES, "no")
