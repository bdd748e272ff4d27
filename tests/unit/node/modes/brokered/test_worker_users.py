"""User IDs of workers: two pools of a machine never use the same one at the same time."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from pathlib import Path

import pytest

from calabash.model.errors import CalabashError, Reason
from calabash.node.modes.brokered.users import FreeUsers
from calabash.node.modes.protocol import WorkerUsers

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only a pool of root can run workers as other users")
RANGE = WorkerUsers(first=2_000_001, last=2_000_002)


def _pool(directory: Path) -> FreeUsers:
    return FreeUsers(RANGE, fallback=directory / "own", directory=directory / "all")


def test_user_taken_by_another_pool_is_skipped(tmp_path: Path) -> None:
    one, other = _pool(tmp_path), _pool(tmp_path)
    first, second = one.one(()), other.one(())
    assert {first.uid, second.uid} == {RANGE.first, RANGE.last}
    with pytest.raises(CalabashError) as none_left:
        one.one({first.uid})
    assert none_left.value.reason is Reason.NO_CAPACITY
    second.close()
    third = one.one({first.uid})
    assert third.uid == second.uid
    first.close()
    third.close()


def test_user_is_free_after_the_last_process_with_its_lock_was_killed(tmp_path: Path) -> None:
    """Take the user as a pool does, start a host that inherits the lock, and be killed; the host keeps running."""
    told, output = os.pipe()
    pool = os.fork()
    if pool == 0:
        taken = _pool(tmp_path).one(())
        host = subprocess.Popen(["sleep", "1000"], pass_fds=(taken.descriptor,))
        os.write(output, f"{taken.uid} {host.pid}".encode())
        signal.pause()
    user, started = map(int, os.read(told, 100).split())
    os.close(told)
    os.close(output)
    os.kill(pool, signal.SIGKILL)
    os.waitpid(pool, 0)
    later = _pool(tmp_path)
    while_it_lives = later.one(())
    assert while_it_lives.uid != user
    with pytest.raises(CalabashError):
        later.one({while_it_lives.uid})
    descriptor = os.pidfd_open(started)
    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    assert _ended(descriptor)
    os.close(descriptor)
    again = later.one({while_it_lives.uid})
    assert again.uid == user
    again.close()
    while_it_lives.close()


def _ended(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 60)[0])


def test_user_with_a_running_process_is_skipped(tmp_path: Path) -> None:
    """The lock may be missing: the other pool uses another /run, or its worker has closed the lock."""
    process = subprocess.Popen(["sleep", "1000"], user=RANGE.first, group=RANGE.first, extra_groups=[])
    try:
        taken = _pool(tmp_path).one(())
        assert taken.uid == RANGE.last
        taken.close()
    finally:
        process.kill()
        process.wait()


def test_lock_directory_writable_by_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "all").chmod(0o777)
    with pytest.raises(CalabashError) as refused:
        _pool(tmp_path).one(())
    assert refused.value.reason is Reason.NOT_PERMITTED


def test_fallback_directory_is_used_if_the_common_one_cannot_be_written(tmp_path: Path) -> None:
    users = FreeUsers(RANGE, fallback=tmp_path / "own", directory=tmp_path / "missing" / "all")
    taken = users.one(())
    assert [entry.name for entry in (tmp_path / "own").iterdir()] == [str(taken.uid)]
    taken.close()
