"""``calabash run``: ask for a slice, enter it, become the program.

The program takes over this process, so exit codes, signals, the terminal and job control are its own. What ties the
slice to the program is the pool's to say: where the kernel keeps the membership, the pool has moved this process in
when it answers; elsewhere it is the lease, a shared lock on a file that every descendant inherits and that the kernel
drops when the last of them is gone, whatever way they go.

On this way nothing is imported that is slow: no click, no pathlib, no typing, no HTTP library.
"""

from __future__ import annotations

import os
import sys

from calabash.cli import ask
from calabash.cli.failure import say
from calabash.cli.home import client
from calabash.seams.pool.entering import environment_with, hold_lease, outside_of_slices

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, NoReturn

_ANSWER_S = 30.0

read_words = ask.split


def start(given: Mapping[str, Sequence[str]], command: Sequence[str]) -> NoReturn:
    """Become ``command`` on the slice that the options ask for. Raises CalabashError when there is none."""
    body = ask.request(given, command) | {"enter": True}
    pool = client()
    granted = pool.post("/v1/allocations", body, timeout_s=body["wait_s"] + _ANSWER_S)
    try:
        if granted.get("door"):
            _run_behind(granted, command)
        if granted["lease"]:
            hold_lease(granted["lease"])
            pool.post(f"/v1/allocations/{granted['id']}/started", {"pid": os.getpid()})
    except BaseException:
        pool.delete(f"/v1/allocations/{granted['id']}")
        raise
    _warn(granted)
    _become(command, environment_with(os.environ, granted["environment"], brokered=bool(granted["worker_socket"])))


def _run_behind(granted: Mapping[str, Any], command: Sequence[str]) -> NoReturn:
    """In the network namespace of its ports, which only the pool's keeper may enter; this process waits for its end."""
    from calabash.seams.pool.door import leave, run_behind  # noqa: PLC0415 - only with ports

    _warn(granted)
    brokered = bool(granted["worker_socket"])
    environment = environment_with(os.environ, granted["environment"], brokered=brokered)
    leave(run_behind(granted["door"], command, environment))


def _warn(granted: Mapping[str, Any]) -> None:
    for text in granted.get("warnings", ()):
        say(f"warning: {text}")


def become_with_worker(command: Sequence[str], granted: Mapping[str, str]) -> NoReturn:
    """Become ``command``, whose worker is where ``granted`` says."""
    _become(command, environment_with(outside_of_slices(os.environ), granted, brokered=True))


def _become(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process; a program that cannot be started ends like a shell's: 127 not found, 126 not allowed."""
    try:
        os.execvpe(command[0], list(command), environment)  # noqa: S606 - running a program is the command's purpose
    except (FileNotFoundError, NotADirectoryError):
        say(f"error: {command[0]}: not found")
        say("hint: check the path after --")
        sys.exit(127)
    except OSError as error:
        say(f"error: {command[0]}: {error.strerror}")
        say("hint: shorten its arguments" if "long" in (error.strerror or "") else "hint: is it executable?")
        sys.exit(126)
