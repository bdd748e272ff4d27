"""Background process that renews a lease while its program lives and releases it afterwards.

``calabash run --remote`` replaces its own process by the program. It forks the keeper before that. The keeper is
detached from the terminal and is no child of the program. It watches the program's process and a pipe that all
descendants of the program inherit. When the process has ended and the pipe is closed by all of them, the keeper
releases the lease. A network outage shorter than the grace period of the server has no effect.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

from calabash.api import lease_endpoints
from calabash.broker.client.account import RemoteAccount
from calabash.broker.client.connection import RemoteServerClient
from calabash.model.errors import CalabashError, Reason

_ATTEMPTS, _PAUSE_S = 4, 3.0
_ASK_S = 10.0


def keep_for_this_process(
    account: RemoteAccount, server: RemoteServerClient, lease: str, grace_s: float, *, own: bool
) -> None:
    """Fork a keeper that renews the lease for as long as this process or a descendant of it lives.

    Args:
        account: files of the user, which contain the key of the lease.
        server: server that granted the lease.
        lease: ID of the lease.
        grace_s: seconds for which the server keeps a lease without a renewal; four renewals are sent in this time.
        own: True to release the lease and delete its key at the end; False for a reservation, which is only renewed.
    """
    program = os.pidfd_open(os.getpid())
    reading, writing = os.pipe()
    run_lock = None
    if own:
        with contextlib.suppress(OSError):  # a full disk: the next run does not wait for this lease
            run_lock = account.lock_run(lease)
    child = os.fork()
    if child:
        os.close(reading)
        os.close(program)
        os.set_inheritable(writing, True)
        if run_lock is not None:
            os.set_inheritable(run_lock, True)
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        _detach({program, reading})  # closes the program's descriptors before the program continues
        if os.fork():
            os._exit(0)
        _keep(server, lease, max(1.0, grace_s / 4), [program, reading])
        if own:
            _release(server, lease)
            account.delete_key(lease)
    except BaseException:
        os._exit(1)
    os._exit(0)


def _detach(kept: set[int]) -> None:
    """Detach from the terminal: ignore its signals and close all descriptors except those in ``kept``.

    The keeper must not keep the program's descriptors open. If the program writes to a pipe, for example, the reader
    sees the end only when all processes have closed the writing side.
    """
    for word in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP):
        signal.signal(word, signal.SIG_IGN)
    os.chdir("/")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    sys.stdin = sys.stdout = sys.stderr = None
    first = 3
    for number in sorted(kept):
        os.closerange(first, number)
        first = number + 1
    os.closerange(first, 1 << 16)


def _keep(server: RemoteServerClient, lease: str, every_s: float, watched: list[int]) -> None:
    """Renew the lease every ``every_s`` seconds until the program has ended or the server refuses a renewal.

    The program has ended when all descriptors of ``watched`` (a pidfd and the reading side of a pipe) are readable.
    """
    poll = select.poll()
    for descriptor in watched:
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
    left = set(watched)
    due = time.monotonic() + every_s
    while True:
        for descriptor, _ in poll.poll(max(0.0, due - time.monotonic()) * 1000):
            poll.unregister(descriptor)
            left.discard(descriptor)
        if not left:
            return
        if time.monotonic() < due:
            continue
        try:
            server.send(lease_endpoints.RENEW_LEASE, lease, timeout_s=_ASK_S)
        except CalabashError as error:
            if error.reason in {Reason.NOT_FOUND, Reason.NOT_PERMITTED}:
                return
        due = time.monotonic() + every_s


def _release(server: RemoteServerClient, lease: str) -> None:
    """Release the lease, with a few attempts.

    If the server cannot be reached, the lease is not renewed either, so the server ends it after the grace period.
    """
    for attempt in range(_ATTEMPTS):
        with contextlib.suppress(CalabashError):
            server.send(lease_endpoints.END_LEASE, lease, timeout_s=_ASK_S)
            return
        if attempt + 1 < _ATTEMPTS:
            time.sleep(_PAUSE_S)
