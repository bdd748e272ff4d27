"""Processes identified by pid and start time: list, inspect and signal them."""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import signal
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_IFMT, S_ISBLK, S_ISCHR
from typing import TypeVar

from calabash.adapters.host.failures import raise_if_exhausted, require_descriptor

_PROC = Path("/proc")

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Process identity that a later process with the same pid does not share.

    ``start_time`` is field 22 of /proc/<pid>/stat, in clock ticks since the boot.
    """

    pid: int
    start_time: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerPid:
    """Pid in a PID namespace, with the inode of the namespace."""

    namespace: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Credentials of the process at the other end of a Unix socket; pid 0 if this PID namespace does not have it."""

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
    """Return all pids, in no order; a process may end before it is examined."""
    return [int(entry.name) for entry in os.scandir(_PROC) if entry.name.isdigit()]


def start_time(pid: int) -> int:
    """Return the start time of a process in clock ticks since the boot; 0 for a zombie and if there is no process."""
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except OSError as error:
        raise_if_exhausted(error)
        return 0
    # The name in parentheses may itself hold spaces and parentheses.
    fields = stat[stat.rfind(b")") + 2 :].split()
    return 0 if fields[0] in {b"Z", b"X"} else int(fields[19])


def identify(pid: int) -> Process | None:
    """Return the live process with that pid, or None."""
    started = start_time(pid) if pid > 0 else 0
    return Process(pid=pid, start_time=started) if started else None


def boot_id() -> str:
    """Return the kernel's ID of this boot of the machine; "" if it is not known."""
    try:
        return (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    except OSError:
        return ""


def owner(process: Process) -> int:
    """Return the effective uid of a process; -1 if it is gone."""
    try:
        uid = (_PROC / str(process.pid)).stat().st_uid
    except OSError as error:
        raise_if_exhausted(error)
        return -1
    return uid if alive(process) else -1


def owner_and_group(process: Process) -> tuple[int, int]:
    """Return effective user and group of a process, dumpable or not. Raises OSError if it has ended."""
    found = {}
    for line in (_PROC / str(process.pid) / "status").read_text().splitlines():
        name, _, values = line.partition(":")
        if name in {"Uid", "Gid"}:
            found[name] = int(values.split()[1])
    return found["Uid"], found["Gid"]


def alive(process: Process) -> bool:
    """Return True if this process, and not a later one with its pid, still runs."""
    return process.pid > 0 and start_time(process.pid) == process.start_time


def command_name(process: Process) -> str:
    """Return the kernel's name of the process, at most 15 printable characters; "" if it is gone."""
    try:
        name = (_PROC / str(process.pid) / "comm").read_text(errors="replace").strip()
    except OSError as error:
        raise_if_exhausted(error)
        return ""
    return "".join(c if c.isprintable() else "?" for c in name) if alive(process) else ""


def parent_of(pid: int) -> int:
    """Return the pid of a process's parent; 0 if it is gone or the parent is not in this namespace."""
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except OSError as error:
        raise_if_exhausted(error)
        return 0
    return int(stat[stat.rfind(b")") + 2 :].split()[1])


def children_of(pid: int) -> list[int]:
    """Return the pids of the live child processes; reads all of /proc, because few kernels have a list."""
    return sorted(child for child in _pids() if parent_of(child) == pid and start_time(child))


def running(program: str, *variables: str, word: str = "") -> list[Process]:
    """Return the processes of this user that run a program of that name; reads all of /proc.

    Args:
        variables: NAME=VALUE pairs that must be in the environment with which the process began.
        word: argument that must be in its command line; "" for any.
    """
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
    """Return the pids of a process in all nested PID namespaces; () if it is gone.

    The first is the pid in this process's namespace, the last that in the process's own namespace.
    """
    try:
        text = (_PROC / str(pid) / "status").read_text()
    except OSError as error:
        raise_if_exhausted(error)
        return ()
    for line in text.splitlines():
        if line.startswith("NSpid:"):
            return tuple(int(p) for p in line.split()[1:])
    return (pid,)


def pid_namespace(pid: int | None = None) -> int:
    """Return the inode of a process's PID namespace (by default this process's); 0 if it cannot be read."""
    try:
        return (_PROC / ("self" if pid is None else str(pid)) / "ns" / "pid").stat().st_ino
    except OSError as error:
        raise_if_exhausted(error)
        return 0


def by_inner_pid(pids: Iterable[int]) -> dict[InnerPid, Process]:
    """Return the running processes among ``pids``. The key of a process is its pid in its own PID namespace."""
    found = {}
    for pid in pids:
        namespace, inner, process = pid_namespace(pid), namespace_pids(pid), identify(pid)
        if namespace and inner and process is not None:
            found[InnerPid(namespace=namespace, pid=inner[-1])] = process
    return found


def in_other_namespaces() -> dict[InnerPid, Process]:
    """Return the live processes of other PID namespaces than this one; reads all of /proc."""
    ours = pid_namespace()
    return by_inner_pid(pid for pid in _pids() if pid_namespace(pid) not in {0, ours})


def send_signal(process: Process, number: signal.Signals, *, still: Callable[[Process], bool] = lambda _: True) -> bool:
    """Send a signal to exactly this process; return False if it is gone or may not be signalled.

    Args:
        still: called when another process can no longer take over the pid; returns False to prevent the signal.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError as error:
        raise_if_exhausted(error)
        return False
    try:
        # Only now that the descriptor pins the process is the comparison of start times conclusive.
        if not alive(process) or not still(process):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except OSError as error:
        raise_if_exhausted(error)
        return False
    finally:
        os.close(descriptor)
    return True


def holders(paths: Sequence[Path]) -> dict[Path, list[Process]]:
    """Return for each file the processes that have it open, by pid, as far as visible; reads all of /proc once."""
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
    """Return for each device file the processes that have the device open, as far as visible.

    A container has device files of its own; what is compared is the device number. Plain files are compared by inode.
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
    """Return True if a process has that file open, as far as visible."""
    try:
        status = path.stat()
    except OSError as error:
        raise_if_exhausted(error)
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
        raise_if_exhausted(error)
    return opened


def peer_of(connection: socket.socket) -> Peer:
    """Return the credentials of the process that connected."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", raw)
    return Peer(pid=pid, uid=uid, gid=gid)


@functools.lru_cache(maxsize=1024)
def user_name(uid: int) -> str:
    """Return the login name, or the number if there is none; cached, because a name service may be slow."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        require_descriptor()  # else a known user would be cached as unknown
        return str(uid)
