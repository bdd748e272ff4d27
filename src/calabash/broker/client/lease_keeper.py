"""Keeps a lease while its program lives: a process of its own beside the program, for the program takes over the command's.

It is forked before the program begins, belongs to nobody's terminal and to nobody's children, and watches two things: the
program's process, and a pipe that all descendants inherit. When both have ended the lease is given back. Until then it is
renewed; a network that is away for less than the grace period costs nothing.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

from calabash.broker.client.account import RemoteAccount
from calabash.broker.client.connection import ServerContact
from calabash.model.errors import CalabashError, Reason

_ATTEMPTS, _PAUSE_S = 4, 3.0
_ASK_S = 10.0


def keep_for_this_process(
    account: RemoteAccount, server: ServerContact, lease: str, grace_s: float, *, own: bool
) -> None:
    """Keep the lease for as long as this process or a descendant of it lives. ``own``: give it back and forget its key then."""
    program = os.pidfd_open(os.getpid())
    reading, writing = os.pipe()
    holding = None
    if own:
        with contextlib.suppress(OSError):  # a full disk: whoever comes after this run does not wait for its lease then
            holding = account.hold(lease)
    child = os.fork()
    if child:
        os.close(reading)
        os.close(program)
        os.set_inheritable(writing, True)
        if holding is not None:
            os.set_inheritable(holding, True)
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        _detach({program, reading})  # before the program goes on: what it holds is held by nobody else from here on
        if os.fork():
            os._exit(0)
        _keep(server, lease, max(1.0, grace_s / 4), [program, reading])
        if own:
            _give_back(server, lease)
            account.forget_key(lease)
    except BaseException:
        os._exit(1)
    os._exit(0)


def _detach(kept: set[int]) -> None:
    """Signals of the terminal are the program's, and so are its descriptors: a pipe that it ends must end."""
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


def _keep(server: ServerContact, lease: str, every_s: float, watched: list[int]) -> None:
    """Renew until all that is watched has ended, or the lease has."""
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
            server.call("POST", f"/v1/leases/{lease}/renew", {}, timeout_s=_ASK_S)
        except CalabashError as error:
            if error.reason in {Reason.NOT_FOUND, Reason.NOT_PERMITTED}:
                return
        due = time.monotonic() + every_s


def _give_back(server: ServerContact, lease: str) -> None:
    """When it cannot be told, the server finds out by itself after the grace period."""
    for attempt in range(_ATTEMPTS):
        with contextlib.suppress(CalabashError):
            server.call("DELETE", f"/v1/leases/{lease}", timeout_s=_ASK_S)
            return
        if attempt + 1 < _ATTEMPTS:
            time.sleep(_PAUSE_S)
