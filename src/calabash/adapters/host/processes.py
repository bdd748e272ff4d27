"""Processes by pid and start time; signals that cannot hit a stranger."""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_IFMT, S_ISBLK, S_ISCHR
from typing import TypeVar

from calabash.adapters.host.failures import require_descriptor, require_told

_PROC = Path("/proc")

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that cannot be confused with a later one; ``start_time`` is field 22 of its stat, in clock ticks."""

    pid: int
    start_time: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerPid:
    """A pid and the inode of the PID namespace that it is one of."""

    namespace: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Who is at the other end of a Unix socket, as the kernel says; pid 0 when it is in a foreign namespace."""

    pid: int
    uid: int
    gid: int


def users_of_processes() -> set[int]:
    """Return the real, effective and saved users of all processes; one pass over /proc."""
    found: set[int] = set()
    for pid in _pids():
        with contextlib.suppress(OSError):
            text = (_PROC / str(pid) / "status").read_text()
            line = next((line for line in text.splitlines() if line.startswith("Uid:")), "")
            found.update(int(word) for word in line.split()[1:])
    return found


def _pids() -> list[int]:
    """All that there are, in no order; what is done with one may find it gone."""
    return [int(entry.name) for entry in os.scandir(_PROC) if entry.name.isdigit()]


def start_time(pid: int) -> int:
    """Start time of a live process, in clock ticks since boot; 0 when there is none or it is a zombie."""
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except OSError as error:
        require_told(error)
        return 0
    # The name in parentheses may itself hold spaces and parentheses.
    fields = stat[stat.rfind(b")") + 2 :].split()
    return 0 if fields[0] in {b"Z", b"X"} else int(fields[19])


def identify(pid: int) -> Process | None:
    """The live process of that pid, or None."""
    started = start_time(pid) if pid > 0 else 0
    return Process(pid=pid, start_time=started) if started else None


def boot_id() -> str:
    """Which start of the machine this is; "" when the kernel does not say."""
    try:
        return (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    except OSError:
        return ""


def began_s(process: Process) -> float:
    """When it was started, in seconds since the epoch."""
    booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return booted_s + process.start_time / os.sysconf("SC_CLK_TCK")


def owner(process: Process) -> int:
    """Effective uid of a process; -1 when it is gone."""
    try:
        uid = (_PROC / str(process.pid)).stat().st_uid
    except OSError as error:
        require_told(error)
        return -1
    return uid if alive(process) else -1


def owner_and_group(process: Process) -> tuple[int, int]:
    """Effective user and group of a process, whether it is dumpable or not. Raises OSError when it has ended."""
    found = {}
    for line in (_PROC / str(process.pid) / "status").read_text().splitlines():
        name, _, values = line.partition(":")
        if name in {"Uid", "Gid"}:
            found[name] = int(values.split()[1])
    return found["Uid"], found["Gid"]


def alive(process: Process) -> bool:
    """Whether this very process still runs."""
    return process.pid > 0 and start_time(process.pid) == process.start_time


def command_name(process: Process) -> str:
    """What the kernel calls its program, at most 15 characters and only such as can be printed; "" when it is gone."""
    try:
        name = (_PROC / str(process.pid) / "comm").read_text(errors="replace").strip()
    except OSError as error:
        require_told(error)
        return ""
    return "".join(c if c.isprintable() else "?" for c in name) if alive(process) else ""


def parent_of(pid: int) -> int:
    """Pid of the parent of a process; 0 when it is gone or its parent is not of this namespace."""
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except OSError as error:
        require_told(error)
        return 0
    return int(stat[stat.rfind(b")") + 2 :].split()[1])


def children_of(pid: int) -> list[int]:
    """Pids of the living processes that a process has started; one pass over /proc, for few kernels keep a list."""
    return sorted(child for child in _pids() if parent_of(child) == pid and start_time(child))


def running(program: str, *variables: str, word: str = "") -> list[Process]:
    """Processes of our own user that run a program of that name, with that word in their command and these NAME=VALUE in
    the environment that they began with. One pass over /proc; another user's are none, whatever they call themselves."""
    found = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
            if os.path.basename(words[0]) != program.encode() or (word and word.encode() not in words):
                continue
            environment = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
            process = identify(pid)
            if process and owner(process) == os.geteuid() and all(v.encode() in environment for v in variables):
                found.append(process)
    return found


def namespace_pids(pid: int) -> tuple[int, ...]:
    """The pids of a process from the reader's namespace inwards; () when it is gone."""
    try:
        text = (_PROC / str(pid) / "status").read_text()
    except OSError as error:
        require_told(error)
        return ()
    for line in text.splitlines():
        if line.startswith("NSpid:"):
            return tuple(int(p) for p in line.split()[1:])
    return (pid,)


def pid_namespace(pid: int | None = None) -> int:
    """Inode of the pid namespace of a process (our own by default); 0 when it cannot be seen."""
    try:
        return (_PROC / ("self" if pid is None else str(pid)) / "ns" / "pid").stat().st_ino
    except OSError as error:
        require_told(error)
        return 0


def by_inner_pid(pids: Iterable[int]) -> dict[InnerPid, Process]:
    """Those of them that live, by what they call themselves in their own namespace."""
    found = {}
    for pid in pids:
        namespace, inner, process = pid_namespace(pid), namespace_pids(pid), identify(pid)
        if namespace and inner and process is not None:
            found[InnerPid(namespace=namespace, pid=inner[-1])] = process
    return found


def in_other_namespaces() -> dict[InnerPid, Process]:
    """All that live in PID namespaces other than ours; one pass over /proc."""
    ours = pid_namespace()
    return by_inner_pid(pid for pid in _pids() if pid_namespace(pid) not in {0, ours})


def send_signal(process: Process, number: signal.Signals, *, still: Callable[[Process], bool] = lambda _: True) -> bool:
    """Signal exactly this process; False when it is gone or not ours, or not ``still`` what it is taken for, which is
    asked when it can be nobody else any more."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError as error:
        require_told(error)
        return False
    try:
        # The descriptor pins the process; only now does the comparison of start times mean anything.
        if not alive(process) or not still(process):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except OSError as error:
        require_told(error)
        return False
    finally:
        os.close(descriptor)
    return True


def holders(paths: Sequence[Path]) -> dict[Path, list[Process]]:
    """For each file the processes that have it open, by pid, as far as we may see; one pass over /proc for all."""
    found: dict[Path, list[Process]] = {path: [] for path in paths}
    wanted: dict[tuple[int, int], Path] = {}
    for path in paths:
        with contextlib.suppress(OSError):
            status = path.stat()
            wanted[status.st_dev, status.st_ino] = path
    if not wanted:
        return found
    for pid in sorted(_pids()):
        opened = _open_files(pid, _file) & wanted.keys()
        process = identify(pid) if opened and pid != os.getpid() else None
        if process is not None:
            for key in opened:
                found[wanted[key]].append(process)
    return found


def device_users(nodes: Sequence[Path]) -> dict[Path, list[Process]]:
    """For each device file the processes that have that device open, under whatever name, as far as we may see.

    A container has device files of its own: what counts is which device they stand for. Plain files stand for themselves.
    """
    found: dict[Path, list[Process]] = {node: [] for node in nodes}
    wanted: dict[tuple[int, int, int], Path] = {}
    for node in nodes:
        with contextlib.suppress(OSError):
            wanted[_identity(node.stat())] = node
    if not wanted:
        return found
    for pid in sorted(_pids()):
        opened = _open_files(pid, _identity) & wanted.keys()
        process = identify(pid) if opened else None
        if process is not None:
            for key in opened:
                found[wanted[key]].append(process)
    return found


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    if S_ISCHR(status.st_mode) or S_ISBLK(status.st_mode):
        return S_IFMT(status.st_mode), status.st_rdev, 0
    return 0, status.st_dev, status.st_ino


def has_open(pid: int, path: Path) -> bool:
    """Whether a process has that file open, as far as we may see."""
    try:
        status = path.stat()
    except OSError as error:
        require_told(error)
        return False
    return (status.st_dev, status.st_ino) in _open_files(pid, _file)


def _file(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _open_files(pid: int, key: Callable[[os.stat_result], Key]) -> set[Key]:
    opened: set[Key] = set()
    try:
        for descriptor in os.scandir(_PROC / str(pid) / "fd"):
            with contextlib.suppress(OSError):
                opened.add(key(descriptor.stat()))
    except OSError as error:
        require_told(error)
    return opened


def peer_of(connection: socket.socket) -> Peer:
    """Credentials of the process that connected."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", raw)
    return Peer(pid=pid, uid=uid, gid=gid)


@functools.lru_cache(maxsize=1024)
def user_name(uid: int) -> str:
    """The login name, or the number; asked of the host once, because a name service may be slow."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        require_descriptor()  # else "unknown" would be remembered of a user that is known
        return str(uid)
