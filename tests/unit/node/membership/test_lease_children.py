"""Membership by leases: children of a member and programs that close their files are members too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from calabash.adapters.host.process_ends import Endings
from calabash.adapters.host.processes import Process, children_of, identify
from calabash.adapters.host.readable import readable
from calabash.model.request import AllocationId
from calabash.node.membership.lease import LeaseMembership

ALLOCATION = AllocationId("a1")
PARENT = "import subprocess, sys; c = subprocess.Popen(['sleep', '600']); print(c.pid, flush=True); sys.stdin.read(); c.kill()"


@pytest.fixture
def family() -> Iterator[tuple[Process, Process]]:
    """A program and what it has started, neither of which has the lease open."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        parent, child = identify(started.pid), identify(int(started.stdout.readline()))
        assert parent is not None
        assert child is not None
        yield parent, child


def test_child_of_a_member_is_a_member_without_a_lease_of_its_own(
    tmp_path: Path, family: tuple[Process, Process]
) -> None:
    parent, child = family
    (tmp_path / "lease").touch()
    membership = LeaseMembership(lambda _: tmp_path / "lease")
    assert membership.allocation_of(child.pid) is None
    membership.enter(ALLOCATION, parent)
    assert children_of(parent.pid) == [child.pid]
    assert membership.processes(ALLOCATION) == sorted((parent, child), key=lambda process: process.pid)
    assert membership.allocation_of(child.pid) == ALLOCATION
    membership.close()


def test_end_of_a_member_is_seen_at_the_next_read_and_affects_no_other(family: tuple[Process, Process]) -> None:
    parent, child = family
    endings = Endings()
    for process in (parent, child, Process(pid=child.pid, start_time=1)):
        endings.watch(process)
    assert endings.ended(Process(pid=child.pid, start_time=1))  # another process has that pid
    endings.poll()
    assert not endings.ended(child)
    descriptor = os.pidfd_open(child.pid)
    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    assert readable(descriptor, 60)
    os.close(descriptor)
    endings.poll()
    assert endings.ended(child)
    assert not endings.ended(parent)
    endings.close()
