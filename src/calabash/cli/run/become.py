"""``calabash run``: request a slice, enter it, and replace this process by the program.

The program takes over this process, and so its exit code, signals, terminal and job control. Where control groups record
the membership, the pool moves this process into the slice's control group before it answers. Elsewhere the program is tied
to its slice by a lease: a shared lock on a file that every descendant inherits, which the kernel drops when the last one
ends.

Imports no slow modules: no click, no pathlib, no typing, no HTTP library.
"""

from __future__ import annotations

import os
import sys
import time

from calabash.adapters.pool.entering import environment_with, hold_lease, outside_of_slices, require_loadable
from calabash.api import endpoints
from calabash.cli.failure import print_on_stderr
from calabash.cli.grant_line import described
from calabash.cli.home import client
from calabash.cli.run import options as run_options
from calabash.model.errors import CalabashError, Reason

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, NoReturn

    from calabash.adapters.pool.client import ApiClient

_ANSWER_S = 30.0
_AGAIN_S = 0.5
_AWAY = frozenset({Reason.POOL_DOWN, Reason.STORE_UNAVAILABLE})

read_words = run_options.split


def start(given: Mapping[str, Sequence[str]], command: Sequence[str]) -> NoReturn:
    """Replace this process by ``command`` on the requested slice. Raises CalabashError if no slice is granted."""
    body = run_options.request(given, command) | {"enter": True}
    pool = client()
    granted = _granted(pool, body, quiet=bool(given.get(run_options.QUIET)))
    try:
        require_loadable(granted["environment"])
        if granted.get("door"):
            _run_behind(granted, command, given)
        if granted["lease"]:
            hold_lease(granted["lease"])
            pool.send(endpoints.REPORT_START, granted["id"], body={"pid": os.getpid()})
    except BaseException:
        pool.send(endpoints.RELEASE, granted["id"])
        raise
    _print_grant(granted, given)
    _become(command, environment_with(os.environ, granted["environment"], brokered=bool(granted["worker_socket"])))


def _granted(pool: ApiClient, body: Mapping[str, Any], *, quiet: bool) -> Any:
    """Return the granted allocation after waiting as long as the request says, also while the pool is down.

    Unless ``quiet``, print why the request waits.

    Raises:
        CalabashError: the pool's refusal.
    """
    wait_s: float = body["wait_s"]
    if not wait_s:
        return pool.send(endpoints.ALLOCATE, body=body, timeout_s=_ANSWER_S)
    from calabash.adapters.pool.client import WaitCallback  # noqa: PLC0415 - only for --wait
    from calabash.cli.run.wait_reason import EVERY_S, FIRST_S, WaitingLine  # noqa: PLC0415 - only for --wait

    line, left_s, deadline = WaitingLine(pool, quiet=quiet), wait_s, time.monotonic() + wait_s
    on_wait = WaitCallback(first_s=FIRST_S, every_s=EVERY_S, call=line.show)
    try:
        while True:
            wanted = {**body, "wait_s": left_s}
            try:
                return pool.send(endpoints.ALLOCATE, body=wanted, timeout_s=left_s + _ANSWER_S, on_wait=on_wait)
            except CalabashError as error:
                left_s = deadline - time.monotonic() - _AGAIN_S
                if error.reason not in _AWAY or left_s <= 0:
                    raise
                line.away(error)
            time.sleep(_AGAIN_S)
            _release_lost_grant(pool)
    finally:
        line.clear()


def _release_lost_grant(pool: ApiClient) -> None:
    """Release allocations that the pool has granted to this process in a lost reply, before the request is repeated."""
    try:
        for row in pool.send(endpoints.LIST_ALLOCATIONS, query={"mine": 1})["items"]:
            pool.send(endpoints.RELEASE, row["id"])
    except CalabashError:
        return  # the pool is still down, or has released them itself


def _run_behind(granted: Mapping[str, Any], command: Sequence[str], given: Mapping[str, Sequence[str]]) -> NoReturn:
    """Let a helper of the pool run a command in the network namespace of the allocation's ports; exit with its status.

    Args:
        granted: the pool's reply with the allocation.
        command: words of the command.
        given: values of the options of ``calabash run``, by flag.
    """
    from calabash.adapters.pool.entry import leave, run_behind  # noqa: PLC0415 - only with ports

    _print_grant(granted, given)
    brokered = bool(granted["worker_socket"])
    environment = environment_with(os.environ, granted["environment"], brokered=brokered)
    leave(run_behind(granted["door"], command, environment))


def _print_grant(granted: Mapping[str, Any], given: Mapping[str, Sequence[str]]) -> None:
    """Print the granted allocation on a terminal or with ``--verbose``, and the pool's warnings."""
    terminal = sys.stderr is not None and sys.stderr.isatty()
    if given.get(run_options.VERBOSE) or (terminal and not given.get(run_options.QUIET)):
        print_on_stderr(described(granted))
    for text in granted.get("warnings", ()):
        print_on_stderr(f"warning: {text}")


def become_with_worker(command: Sequence[str], granted: Mapping[str, str]) -> NoReturn:
    """Replace this process by ``command`` in an environment that names its worker."""
    _become(command, environment_with(outside_of_slices(os.environ), granted, brokered=True))


def _become(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by the command; if that fails, exit like a shell: 127 not found, 126 not allowed."""
    try:
        os.execvpe(command[0], list(command), environment)  # noqa: S606 - running a program is the command's purpose
    except (FileNotFoundError, NotADirectoryError):
        print_on_stderr(f"error: {command[0]}: not found")
        print_on_stderr("hint: check the path after --")
        sys.exit(127)
    except OSError as error:
        print_on_stderr(f"error: {command[0]}: {error.strerror}")
        print_on_stderr(
            "hint: shorten its arguments" if "long" in (error.strerror or "") else "hint: check that it is executable"
        )
        sys.exit(126)
