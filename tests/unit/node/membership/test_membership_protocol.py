"""Membership by control groups and by leases: a process stays a member whatever it does."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from calabash.adapters.host.cgroups.groups import Cgroup, CgroupHierarchy, find_hierarchy, group_of
from calabash.adapters.host.file_watch import FileWatch
from calabash.adapters.host.mounts import mounts
from calabash.adapters.host.processes import Process, alive, identify
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.node.membership.lease import LeaseMembership
from calabash.node.membership.pool_cgroups import KernelMembership
from calabash.node.membership.protocol import choose_membership, group_name

A, B = AllocationId("a1"), AllocationId("b2")
TENANT_UID = 65534


def until(condition: Callable[[], object], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _child(body: Callable[[], None], uid: int = 0) -> Process:
    """A process that runs ``body`` and then waits to be killed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            if uid:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            body()
            os.write(writing, b"!")
            os.close(writing)
            while True:
                signal.pause()
        finally:
            os._exit(9)
    os.close(writing)
    os.read(reading, 1)
    os.close(reading)
    process = identify(pid)
    assert process is not None
    return process


def _nothing() -> None:
    pass


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[KernelMembership]:
    hierarchy = find_hierarchy()
    if os.geteuid() != 0 or hierarchy is None:
        pytest.skip("control groups of version 2 are made by root")
    membership = KernelMembership(hierarchy, group_name(tmp_path))
    assert membership.works()
    yield membership
    base = Cgroup(hierarchy.directory / group_name(tmp_path))
    base.kill()
    until(lambda: not base.populated())
    assert base.remove()


@pytest.fixture
def entered(kernel: KernelMembership) -> Iterator[Process]:
    kernel.prepare(A)
    process = _child(_nothing, TENANT_UID)
    kernel.enter(A, process)
    yield process
    kernel.kill(A)
    os.waitpid(process.pid, 0)


def test_entered_process_is_found_by_its_pid_and_no_other(kernel: KernelMembership, entered: Process) -> None:
    assert kernel.populated(A)
    assert kernel.processes(A) == [entered]
    assert kernel.allocation_of(entered.pid) == A
    assert kernel.allocation_of(os.getpid()) is None
    assert kernel.allocation_of(2**22 - 1) is None


def test_double_forked_daemon_with_a_new_session_stays_a_member(kernel: KernelMembership) -> None:
    kernel.prepare(A)
    go_reading, go_writing = os.pipe()

    def daemonise() -> None:
        os.read(go_reading, 1)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.closerange(0, 256)
                os.execv("/bin/sleep", ["sleep", "1000"])
            os._exit(0)
        os._exit(0)

    pid = os.fork()
    if pid == 0:
        daemonise()
    process = identify(pid)
    assert process is not None
    kernel.enter(A, process)
    os.write(go_writing, b"!")
    os.waitpid(pid, 0)
    until(lambda: [Path(f"/proc/{p.pid}/comm").read_text() for p in kernel.processes(A)] == ["sleep\n"])
    assert kernel.populated(A)
    assert not kernel.remove(A)
    kernel.kill(A)
    until(lambda: not kernel.populated(A))
    assert kernel.remove(A)


def test_tenant_can_neither_leave_its_group_nor_enter_another(kernel: KernelMembership) -> None:
    kernel.prepare(A)
    kernel.prepare(B)
    found = find_hierarchy()
    assert found is not None
    directory, go = found.directory, os.pipe()
    result_reading, result_writing = os.pipe()

    def escape() -> None:
        os.read(go[0], 1)
        mine = directory / str(group_of(os.getpid())).lstrip("/")
        for target in (directory, mine.parent, mine.parent / B, mine):
            try:
                (target / "cgroup.procs").write_text(str(os.getpid()))
                os.write(result_writing, b"moved ")
            except PermissionError:
                os.write(result_writing, b"refused ")
        try:
            (mine / "nested").mkdir()
        except PermissionError:
            os.write(result_writing, b"refused.")

    pid = os.fork()
    if pid == 0:
        os.setgid(TENANT_UID)
        os.setuid(TENANT_UID)
        escape()
        os._exit(0)
    process = identify(pid)
    assert process is not None
    kernel.enter(A, process)
    os.write(go[1], b"!")
    os.waitpid(pid, 0)
    assert os.read(result_reading, 100) == b"refused refused refused refused refused."


def test_nested_groups_of_a_root_program_are_counted_killed_and_removed(kernel: KernelMembership) -> None:
    kernel.prepare(A)
    found = find_hierarchy()
    assert found is not None
    process = _child(_nothing)
    kernel.enter(A, process)
    nested = Cgroup(found.directory / str(group_of(process.pid)).lstrip("/") / "x" / "y")
    nested.directory.parent.mkdir()
    nested.create()
    nested.add(process.pid)
    assert kernel.allocation_of(process.pid) == A
    assert kernel.processes(A) == [process]
    assert kernel.populated(A)
    kernel.kill(A)
    os.waitpid(process.pid, 0)
    until(lambda: not kernel.populated(A))
    assert kernel.remove(A)
    assert not nested.directory.exists()


def test_entering_is_refused_for_a_dead_process_and_for_a_removed_group(kernel: KernelMembership) -> None:
    process = _child(_nothing)
    with pytest.raises(CalabashError) as caught:
        kernel.enter(A, process)
    assert caught.value.reason is Reason.NOT_FOUND
    kernel.prepare(A)
    later = Process(pid=process.pid, start_time=process.start_time + 1)  # the pid was reused
    with pytest.raises(CalabashError):
        kernel.enter(A, later)
    assert not kernel.populated(A)
    os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, 0)
    with pytest.raises(CalabashError):
        kernel.enter(A, process)


def test_process_with_a_pid_reused_during_the_move_is_moved_back(
    kernel: KernelMembership, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.prepare(A)
    process = _child(_nothing)
    answers = iter([True, False])  # alive before the move, another process after it
    monkeypatch.setattr("calabash.node.membership.pool_cgroups.alive", lambda _: next(answers))
    with pytest.raises(CalabashError):
        kernel.enter(A, process)
    assert group_of(process.pid) == group_of(os.getpid())
    os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, 0)


def test_fork_bomb_is_killed_on_a_kernel_without_cgroup_kill(
    kernel: KernelMembership, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Cgroup._write

    def without_kill(self: Cgroup, name: str, text: str) -> None:
        if name == "cgroup.kill":
            raise FileNotFoundError
        write(self, name, text)

    monkeypatch.setattr(Cgroup, "_write", without_kill)
    kernel.prepare(A)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        os.read(reading, 1)  # what is forked before it is a member stays outside for ever
        while True:  # one more every time, each waiting for the next
            child = os.fork()
            if child:
                os.waitpid(child, 0)
    os.close(reading)
    process = identify(pid)
    assert process is not None
    kernel.enter(A, process)
    os.close(writing)
    kernel.kill(A)
    os.waitpid(pid, 0)
    until(lambda: not kernel.populated(A))


def test_frozen_group_is_killed_without_running(kernel: KernelMembership, entered: Process) -> None:
    kernel.freeze(A, True)
    until(lambda: "frozen 1" in (_directory(kernel, A) / "cgroup.events").read_text())
    assert alive(entered)
    kernel.kill(A)
    until(lambda: not kernel.populated(A))


def _directory(kernel: KernelMembership, allocation: AllocationId) -> Path:
    return kernel._group(allocation).directory


def test_restarted_pool_finds_its_members(kernel: KernelMembership, entered: Process, tmp_path: Path) -> None:
    kernel.prepare(B)
    found = find_hierarchy()
    assert found is not None
    assert KernelMembership(found, group_name(tmp_path)).adopt([]) == {A}


def test_group_frozen_by_a_dead_pool_is_thawed_by_the_next_one(
    kernel: KernelMembership, entered: Process, tmp_path: Path
) -> None:
    kernel.freeze(A, True)
    until(lambda: "frozen 1" in (_directory(kernel, A) / "cgroup.events").read_text())
    found = find_hierarchy()
    assert found is not None
    KernelMembership(found, group_name(tmp_path)).adopt([])
    until(lambda: "frozen 0" in (_directory(kernel, A) / "cgroup.events").read_text())
    assert alive(entered)


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "a\n", "A"])
def test_name_with_path_components_is_no_group(kernel: KernelMembership, name: str) -> None:
    with pytest.raises(CalabashError):
        kernel.prepare(AllocationId(name))


def test_root_gets_groups_and_other_users_get_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: TENANT_UID)
    assert choose_membership(tmp_path, tmp_path).form == "lease"


def test_root_falls_back_to_leases_without_a_writable_hierarchy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calabash.node.membership.protocol.find_hierarchy", lambda: None)

    def refused(_: Path) -> CgroupHierarchy:
        raise PermissionError

    monkeypatch.setattr("calabash.node.membership.protocol.mount_hierarchy", refused)
    assert choose_membership(tmp_path, tmp_path).form == "lease"


MOUNTINFO = rb"""22 1 0:20 / /proc rw,nosuid - proc proc rw
30 22 0:26 / /sys/fs/cgroup ro,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate
31 22 0:26 /../.. /outer rw - cgroup2 cgroup2 rw
32 22 0:26 /part /a\040b rw,relatime shared:1 master:2 - cgroup2 none rw
broken line
"""


def test_hierarchy_is_writable_and_inside_the_cgroup_namespace() -> None:
    found = find_hierarchy(mounts(MOUNTINFO))
    assert found == CgroupHierarchy(directory=Path("/a b"), top="/part")
    assert find_hierarchy(mounts(b"")) is None


# -- leases ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def lease(tmp_path: Path) -> LeaseMembership:
    for name in (A, B):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lease").touch()
    return LeaseMembership(lambda allocation: tmp_path / allocation / "lease")


def _hold(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def test_program_that_drops_its_lease_is_a_member_until_it_ends(lease: LeaseMembership) -> None:
    process = _child(_nothing)
    lease.enter(A, process)
    assert lease.populated(A)
    assert lease.allocation_of(process.pid) == A
    assert not lease.remove(A)
    lease.kill(A)
    os.waitpid(process.pid, 0)
    assert not lease.populated(A)
    assert lease.remove(A)


def test_process_seen_with_a_lease_stays_a_member_after_closing_it(lease: LeaseMembership, tmp_path: Path) -> None:
    reading, writing = os.pipe()

    def body() -> None:
        held = _hold(tmp_path / A / "lease")
        if os.fork() == 0:  # the first waits to be killed; this one closes what it holds
            os.read(reading, 1)
            os.close(held)
            os.execv("/bin/sleep", ["sleep", "1000"])
        os.close(held)

    parent = _child(body)
    assert lease.populated(A)
    (child,) = lease.processes(A)
    assert lease.allocation_of(child.pid) == A
    os.write(writing, b"!")
    until(lambda: Path(f"/proc/{child.pid}/comm").read_text() == "sleep\n")
    assert lease.populated(A)
    for process in (parent, child):
        os.kill(process.pid, signal.SIGKILL)
    os.waitpid(parent.pid, 0)
    until(lambda: not lease.populated(A))


def test_lease_held_by_a_socket_message_is_ignored_once_its_allocation_is_killed(
    lease: LeaseMembership, tmp_path: Path
) -> None:
    near, far = socket.socketpair()
    held = _hold(tmp_path / A / "lease")
    socket.send_fds(near, [b"x"], [held])
    os.close(held)
    assert lease.populated(A)
    assert not lease.remove(A)
    lease.kill(A)
    assert not lease.populated(A)
    assert lease.remove(A)
    near.close()
    far.close()


def _heard(kernel: KernelMembership, wanted: AllocationId) -> bool:
    news = kernel.changed_allocations()
    assert news is not None
    return wanted in news


def test_changes_are_reported_for_the_first_and_the_last_member_only(kernel: KernelMembership) -> None:
    for allocation in (A, B):
        kernel.prepare(allocation)
    assert kernel.changed_allocations() == set()
    first, second = _child(_nothing), _child(_nothing)
    kernel.enter(A, first)
    until(lambda: _heard(kernel, A))
    kernel.enter(A, second)
    os.kill(first.pid, signal.SIGKILL)
    os.waitpid(first.pid, 0)
    time.sleep(0.1)  # for a report that must not come
    assert kernel.changed_allocations() == set()
    os.kill(second.pid, signal.SIGKILL)
    os.waitpid(second.pid, 0)
    until(lambda: _heard(kernel, A))
    assert not kernel.populated(A)
    for allocation in (A, B):
        assert kernel.remove(allocation)


def test_changes_are_reported_for_a_group_created_again_under_its_name(kernel: KernelMembership) -> None:
    kernel.prepare(A)
    assert kernel.remove(A)
    kernel.prepare(A)
    program = _child(_nothing)
    kernel.enter(A, program)
    until(lambda: _heard(kernel, A))
    os.kill(program.pid, signal.SIGKILL)
    os.waitpid(program.pid, 0)
    until(lambda: _heard(kernel, A) and not kernel.populated(A))
    assert kernel.remove(A)


def test_allocation_without_a_watch_is_always_reported_as_changed(
    kernel: KernelMembership, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(watch: FileWatch, path: Path) -> None:
        raise OSError(errno.ENOSPC, "no watches are left")

    monkeypatch.setattr(FileWatch, "add", none_left)
    kernel.prepare(A)
    assert kernel.changed_allocations() == {A} == kernel.changed_allocations()
    assert kernel.remove(A)
    assert kernel.changed_allocations() == set()
