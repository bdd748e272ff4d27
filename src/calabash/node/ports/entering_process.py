"""What a program's process does in an allocation's namespace before it is the program.

It is root's when it begins and its caller's when it reads what it is to be. It has no right over networks then and cannot get
one, it is in the namespace, and of this machine's network it has nothing open.
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
    """Where it goes and what it has.

    Args:
        descriptors: what becomes its standard input, output and error.
        go: it waits for a byte there once it is where it belongs; the end of it ends the process.
        begins: a descriptor that closes when it is the program.
        keeper: its parent.
    """

    namespace: Path
    resolver_file: Path | None
    lease: str
    descriptors: tuple[int, ...]
    go: int
    begins: int
    keeper: int


def become_program(entrant: Entrant, caller: socket.socket) -> NoReturn:
    """Never returns; what goes wrong is told on standard error."""
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
        os.write(2, f"error: it cannot be started: {error}\n".encode(errors="replace"))
    os._exit(NOT_STARTED)


def _take_descriptors(entrant: Entrant, caller: socket.socket) -> socket.socket:
    """0, 1 and 2 of its caller, 3 to wait at, 4 that closes when it begins, 5 the connection, which is returned."""
    kept = [os.dup(d) for d in (*entrant.descriptors, entrant.go, entrant.begins, caller.fileno())]
    high = [os.dup2(descriptor, 200 + number, inheritable=False) for number, descriptor in enumerate(kept)]
    for number, descriptor in enumerate(high):
        os.dup2(descriptor, number, inheritable=number < 3)
    caller.detach()
    os.closerange(6, os.sysconf("SC_OPEN_MAX"))
    return socket.socket(fileno=5)


def _become_caller(caller: socket.socket) -> None:
    """Its user, its groups, and no right that it could use to leave."""
    _, uid, gid = struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    groups = array.array("I", caller.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES_MAX))
    kept = OF_A_TENANT_ROOT if uid == 0 else frozenset[int]()
    bound(kept)
    os.setgroups(groups.tolist())
    os.setresgid(gid, gid, gid)
    if uid != 0:
        os.setresuid(uid, uid, uid)
        close_memory()  # until it is the program, it is the product's
    keep_only(kept)
    if os.getresuid() != (uid,) * 3 or os.getresgid() != (gid,) * 3:
        raise PermissionError(1, "it would have rights of somebody else")


def _take_limits(caller: socket.socket) -> None:
    """Its caller's, as far as they are not above those of the pool; as that user, who may ask for them."""
    pid = struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    for number in _LIMITS:
        own = resource.getrlimit(number)[1]
        soft, hard = (_least(limit, own) for limit in resource.prlimit(pid, number))
        resource.setrlimit(number, (soft, hard))


def _least(limit: int, other: int) -> int:
    infinite = resource.RLIM_INFINITY
    return other if limit == infinite else limit if other == infinite else min(limit, other)


def _end_with(keeper: int) -> None:
    """The kernel ends this process when its keeper ends; later than becoming another user, which undoes that."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != keeper:
        os._exit(NOT_STARTED)


def _read_order(caller: socket.socket) -> dict[str, Any]:
    caller.settimeout(READ_WITHIN_S)
    (length,) = struct.unpack("!I", _exactly(caller, 4))
    if length > ORDER_BYTES_MAX:
        raise ValueError(f"its command and environment have {length} bytes, at most {ORDER_BYTES_MAX}")
    order: dict[str, Any] = json.loads(_exactly(caller, length))
    return order


def _exactly(caller: socket.socket, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        chunk = caller.recv(min(1 << 16, length - len(found)))
        if not chunk:
            raise ConnectionError("its caller went away")
        found += chunk
    return bytes(found)


def _execute(order: dict[str, Any]) -> None:
    command = [str(word) for word in order["command"]]
    os.chdir(order["directory"])
    os.umask(int(order["umask"]) & 0o777)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a program would inherit that
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
