"""Processes of the product that share their user with other processes: these cannot read their memory."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable

import pytest

from calabash.adapters.host.accounts import LocalAccount, become_account
from calabash.gateway.serving.privileges import drop_privileges

_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4
USER = 2_000_010


def _gateway() -> None:
    drop_privileges(USER if os.geteuid() == 0 else 0)


def _job() -> None:
    become_account(LocalAccount(name="nobody", uid=USER, gid=USER, home="/", shell="/bin/sh"))


def _seen_after(act: Callable[[], None]) -> list[int]:
    """Return the dumpable attribute of a process (0 or 1) after a call, and its limit on the size of core files."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_DUMPABLE, 1)
        act()
        core = resource.getrlimit(resource.RLIMIT_CORE)[1]
        os.write(writable, f"{libc.prctl(_PR_GET_DUMPABLE)} {core}".encode())
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as source:
        found = [int(word) for word in source.read().split()]
    os.waitpid(pid, 0)
    return found


def test_the_gateway_gives_up_its_memory_to_nobody() -> None:
    assert _seen_after(_gateway) == [0, 0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")
def test_the_process_of_a_job_is_closed_before_it_is_the_program() -> None:
    assert _seen_after(_job)[0] == 0
