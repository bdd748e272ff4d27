"""Mark of member processes that only root of the machine can remove.

Child processes inherit the mark, and every process can read its own by one system call in any namespace. The mark is a
finite hard limit of RLIMIT_LOCKS, a resource that Linux has not counted since version 2.4. Any process may lower that
limit; raising it takes CAP_SYS_RESOURCE in the initial user namespace. The reader is native/shim/slot.c.
"""

from __future__ import annotations

import functools
import resource
import subprocess
from pathlib import Path

from calabash.adapters.host.children import find_program, run_program
from calabash.adapters.host.failures import failure
from calabash.adapters.host.processes import Process, alive, owner_and_group
from calabash.model.errors import CalabashError, Reason

_LOCKS, _MARK = 10, 1 << 62
_CAP_SYS_RESOURCE = 24
_PATIENCE_S = 10.0
_HINT = "give the pool CAP_SYS_RESOURCE, or try again"


def can_mark() -> bool:
    """Return True if this process can mark processes of other users."""
    return _is_privileged() or find_program("prlimit") is not None


def mark(process: Process) -> None:
    """Mark a process, and all processes that it starts from now on, as members. Raises CalabashError on failure."""
    try:
        if _is_privileged():
            resource.prlimit(process.pid, _LOCKS, (_MARK, _MARK))
        elif not is_marked(process):
            _lower_as_its_user(process)
    except OSError as error:
        raise failure(error, f"process {process.pid} cannot be marked as a member", hint=_HINT) from error
    except (ValueError, KeyError, subprocess.SubprocessError) as error:
        raise _failed(process, str(error)) from error
    if not alive(process):
        if _is_privileged():  # the process ID may belong to another process by now
            _unmark(process.pid)
        raise CalabashError(f"process {process.pid} has ended", reason=Reason.NOT_FOUND)
    if not is_marked(process):
        raise _failed(process, "the limit did not change")


def is_marked(process: Process) -> bool:
    """Return True if a process has the mark. Raises OSError when it has ended."""
    for line in Path(f"/proc/{process.pid}/limits").read_text().splitlines():
        if line.startswith("Max file locks"):
            return "unlimited" not in line.split()[4:5]
    return False


def _lower_as_its_user(process: Process) -> None:
    """Lower the limit of a process by means of a program that runs with its user and group.

    Without CAP_SYS_RESOURCE, a process may change the limits only of processes with the same user and group.
    """
    command = ["prlimit", f"--pid={process.pid}", f"--locks={_MARK}:{_MARK}"]
    # If the user stops or ends this program, the process does not become a member.
    run_program(command, timeout_s=_PATIENCE_S, environment={}, account=owner_and_group(process))


def _unmark(pid: int) -> None:
    try:
        resource.prlimit(pid, _LOCKS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (OSError, ValueError):
        return


@functools.cache
def _is_privileged() -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_RESOURCE & 1)
    return False


def _failed(process: Process, why: str) -> CalabashError:
    return CalabashError(
        f"process {process.pid} cannot be marked as a member: {why}",
        reason=Reason.NOT_PERMITTED,
        hint=_HINT,
    )
