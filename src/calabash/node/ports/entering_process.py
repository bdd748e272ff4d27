"""Steps of a process from root to a tenant's program inside the network namespace of an allocation.

The process starts as root, enters the namespace, drops its capabilities and becomes the calling user, and only then reads the
command. At that point it has no network capability and cannot obtain one, and it has no socket of the machine's network open.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import resource
import signal
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from calabash.adapters.host.capabilities import OF_A_TENANT_ROOT, bound, close_memory, keep_only
from calabash.adapters.links.enter_namespace import enter
from calabash.adapters.pool.entering import hold_lease

ORDER_BYTES_MAX = 8 << 20
READ_WITHIN_S = 10.0
NOT_STARTED = 125
_GROUPS_BYTES_MAX = 1024  # as much as getsockopt of Python's asks for: 256 groups
_SO_PEERGROUPS = 59
_PR_SET_PDEATHSIG = 1
_LIMITS = [number for name, number in vars(resource).items() if name.startswith("RLIMIT_")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """Parameters of the process that becomes the program.

    Args:
        lease: the file that the program locks as a member of the allocation; "" for none.
        namespace: path of the network namespace.
        resolver_file: the file that the program sees as /etc/resolv.conf; None: the host's.
        descriptors: standard input, output and error of the program.
        go: read end of a pipe; the process waits there for a byte after it has entered the namespace, and exits at its end.
        begins: a descriptor that closes when the program is executed.
        keeper: PID of the parent process.
    """

    namespace: Path
    resolver_file: Path | None
    lease: str
    descriptors: tuple[int, ...]
    go: int
    begins: int
    keeper: int


def become_program(entrant: Entrant, caller: socket.socket) -> NoReturn:
    """Turn this forked process into the caller's program. Errors are written to standard error with exit status 125."""
    try:
        os.setsid()
        caller = _take_descriptors(entrant, caller)
        enter(entrant.namespace, entrant.resolver_file)
        if os.read(3, 1) != b"g":
            os._exit(NOT_STARTED)
        os.close(3)
        _become_caller(caller)
        _take_limits(caller)
        _end_with(entrant.keeper)
        order = _read_order(caller)
        caller.close()
        if entrant.lease:
            hold_lease(entrant.lease)
        _execute(order)
    except BaseException as error:
        os.write(2, f"error: the program cannot be started: {error}\n".encode(errors="replace"))
    os._exit(NOT_STARTED)


def _take_descriptors(entrant: Entrant, caller: socket.socket) -> socket.socket:
    """Renumber the descriptors of this process and close all others. Return the connection to the caller.

    0, 1 and 2 are the standard streams of the program, 3 is ``go`` and 4 is ``begins`` of ``entrant``, 5 is the
    connection. Only 0 to 2 stay open in the program.
    """
    kept = [os.dup(d) for d in (*entrant.descriptors, entrant.go, entrant.begins, caller.fileno())]
    high = [os.dup2(descriptor, 200 + number, inheritable=False) for number, descriptor in enumerate(kept)]
    for number, descriptor in enumerate(high):
        os.dup2(descriptor, number, inheritable=number < 3)
    caller.detach()
    os.closerange(6, os.sysconf("SC_OPEN_MAX"))
    return socket.socket(fileno=5)


def _become_caller(caller: socket.socket) -> None:
    """Become the connected user with its groups, and drop all capabilities with which it could leave the namespace.

    Raises PermissionError if the user or group IDs are not the caller's afterwards.
    """
    _, uid, gid = struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    groups = array.array("I", caller.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES_MAX))
    kept = OF_A_TENANT_ROOT if uid == 0 else frozenset[int]()
    bound(kept)
    os.setgroups(groups.tolist())
    os.setresgid(gid, gid, gid)
    if uid != 0:
        os.setresuid(uid, uid, uid)
        close_memory()  # until the program is executed, its user must not read the memory of this process
    keep_only(kept)
    if os.getresuid() != (uid,) * 3 or os.getresgid() != (gid,) * 3:
        raise PermissionError(1, "the process still has user or group IDs that are not the caller's")


def _take_limits(caller: socket.socket) -> None:
    """Set the caller's resource limits for this process, each at most the pool's.

    This process is the caller's user by now, so the kernel permits it to read these limits.
    """
    pid = struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    for number in _LIMITS:
        own = resource.getrlimit(number)[1]
        soft, hard = (_least(limit, own) for limit in resource.prlimit(pid, number))
        resource.setrlimit(number, (soft, hard))


def _least(limit: int, other: int) -> int:
    infinite = resource.RLIM_INFINITY
    return other if limit == infinite else limit if other == infinite else min(limit, other)


def _end_with(keeper: int) -> None:
    """Have the kernel kill this process when its keeper ends. Called after the change of user, which resets this setting."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != keeper:
        os._exit(NOT_STARTED)


def _read_order(caller: socket.socket) -> dict[str, Any]:
    caller.settimeout(READ_WITHIN_S)
    (length,) = struct.unpack("!I", _exactly(caller, 4))
    if length > ORDER_BYTES_MAX:
        raise ValueError(f"the command and environment have {length} bytes, at most {ORDER_BYTES_MAX} are allowed")
    order: dict[str, Any] = json.loads(_exactly(caller, length))
    return order


def _exactly(caller: socket.socket, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        chunk = caller.recv(min(1 << 16, length - len(found)))
        if not chunk:
            raise ConnectionError("the caller closed the connection")
        found += chunk
    return bytes(found)


def _execute(order: dict[str, Any]) -> None:
    command = [str(word) for word in order["command"]]
    os.chdir(order["directory"])
    os.umask(int(order["umask"]) & 0o777)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python, which the program would inherit
        signal.signal(number, signal.SIG_DFL)
    environment = {str(name): str(value) for name, value in order["environment"].items()}
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - running a program is the purpose
    except (FileNotFoundError, NotADirectoryError):
        os.write(2, f"error: {command[0]}: not found\nhint: check the path after --\n".encode(errors="surrogateescape"))
        os._exit(127)
    except OSError as error:
        os.write(
            2, f"error: {command[0]}: {error.strerror}\nhint: is it executable?\n".encode(errors="surrogateescape")
        )
        os._exit(126)
