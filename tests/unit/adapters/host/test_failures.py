"""Process without free file descriptors: an object that it cannot examine is not reported as missing or forbidden."""

from __future__ import annotations

import errno
import os
import pwd
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from calabash.adapters.host import processes, users
from calabash.adapters.host.accounts import account_of
from calabash.adapters.host.cgroups import groups as cgroups_groups
from calabash.adapters.host.failures import EXHAUSTED, FULL, failure
from calabash.model.errors import CalabashError, Reason
from calabash.platform.access.permission import account

SELF = processes.identify(os.getpid())
# Of a file: systemd's name service answers for root and nobody without one.
LISTED = next(entry for entry in pwd.getpwall() if entry.pw_uid not in (0, 65534))


@pytest.fixture(autouse=True)
def _loaded_name_services() -> None:
    """Look up an account that does not exist, so that all name services are loaded while descriptors are available."""
    with suppress(KeyError):
        pwd.getpwnam("no-such-user-here")


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Lower the limit of descriptors to those that are open, so that the next open fails with EMFILE."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.open(os.devnull, os.O_RDONLY)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe, before[1]))
    held: list[int] = []
    try:
        while True:
            try:
                held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


READS: dict[str, Callable[[], Any]] = {
    "start_time": lambda: processes.start_time(os.getpid()),
    "identify": lambda: processes.identify(os.getpid()),
    "alive": lambda: SELF is None or processes.alive(SELF),
    "command_name": lambda: SELF is None or processes.command_name(SELF),
    "parent_of": lambda: processes.parent_of(os.getpid()),
    "namespace_pids": lambda: processes.namespace_pids(os.getpid()),
    "group_of": lambda: cgroups_groups.group_of(os.getpid()),
    "user_name": lambda: processes.user_name.__wrapped__(LISTED.pw_uid),
    "user_groups": lambda: users.user_groups(LISTED.pw_uid),
    "account": lambda: account(LISTED.pw_name),
    "account_of": lambda: account_of(LISTED.pw_uid),
    "holders": lambda: processes.has_open(os.getpid(), Path("/dev/null")),
}


@pytest.mark.parametrize("read", READS)
def test_read_without_descriptors_is_refused_as_overloaded_and_right_again_afterwards(read: str) -> None:
    before = READS[read]()
    with no_descriptors(), pytest.raises(CalabashError) as refused:
        READS[read]()
    assert refused.value.reason is Reason.OVERLOADED
    assert READS[read]() == before


def test_control_group_that_cannot_be_read_is_not_taken_for_empty(tmp_path: Path) -> None:
    group = cgroups_groups.Cgroup(tmp_path)
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    (tmp_path / "cgroup.procs").write_text(f"{os.getpid()}\n")
    assert group.populated()
    for read in (group.populated, group.pids):
        with no_descriptors(), pytest.raises((CalabashError, OSError)):
            read()
    assert group.pids() == [os.getpid()]


def test_unknown_user_stays_unknown() -> None:
    assert account("no-such-user-here") == -1
    assert processes.user_name.__wrapped__(3_999_999_999) == "3999999999"


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_only_missing_permission_is_called_missing_permission(number: int) -> None:
    told = failure(OSError(number, os.strerror(number)), "cannot make the slot /x", hint="look")
    assert (told.reason is Reason.NOT_PERMITTED) == (number in {errno.EACCES, errno.EPERM})
    assert (told.reason is Reason.OVERLOADED) == (number in EXHAUSTED)
    assert (told.reason is Reason.DISK_FULL) == (number in FULL)
    assert told.message == f"cannot make the slot /x: {os.strerror(number).lower()}"
    if number not in {errno.ENOENT, errno.ESRCH}:
        assert told.hint
