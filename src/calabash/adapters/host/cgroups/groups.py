"""Control groups, version 2: membership of processes, whether a group is empty, freezing and killing all members.

Every child process inherits the membership, and only processes that may write to the group's directory can change it.
It survives daemonising, closed descriptors, new sessions and exec. No controller is enabled, so that a version 2
hierarchy beside version 1 controllers suffices.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from calabash.adapters.host.failures import raise_if_exhausted
from calabash.adapters.host.mounts import Mounted, mount, mounts

_EVENTS, _EVENTS_BYTES_MAX = "cgroup.events", 4096
_LINKS_WITHOUT_GROUPS = 2  # of a directory: its name and its own "."; every group inside adds one
_NESTED_MAX = 10_000  # nested groups of a group that are examined; a tenant with root rights may make more


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupHierarchy:
    """Mounted hierarchy of control groups: its directory, and the name of its top group in /proc/<pid>/cgroup."""

    directory: Path
    top: str


def find_hierarchy(mounted: list[Mounted] | None = None) -> CgroupHierarchy | None:
    """Return the hierarchy of version 2 that is mounted and writable; None if there is none."""
    for entry in mounts() if mounted is None else mounted:
        inside = entry.root == "/" or "/.." not in entry.root  # "/..": mounted from outside of this namespace
        if entry.kind == "cgroup2" and inside and entry.writable:
            return CgroupHierarchy(directory=entry.directory, top=entry.root.rstrip("/"))
    return None


def mount_hierarchy(directory: Path) -> CgroupHierarchy:
    """Mount the hierarchy at a directory. Raises OSError if that is not permitted."""
    directory.mkdir(mode=0o700, exist_ok=True)
    mount("calabash", directory, "cgroup2", "nosuid,nodev,noexec")
    return CgroupHierarchy(directory=directory, top="")


def group_of(pid: int) -> str | None:
    """Return the name of a process's group; None if the process is gone or the name cannot be read."""
    try:
        with open(f"/proc/{pid}/cgroup", "rb", buffering=0) as file:
            text = file.read(65536)
    except OSError as error:
        raise_if_exhausted(error)
        return None
    for line in text.split(b"\n"):
        if line.startswith(b"0::/"):
            with contextlib.suppress(UnicodeDecodeError):
                return line[3:].decode()
    return None


class Cgroup:
    """Control group and all groups nested in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def create(self) -> None:
        """Create the group if it does not exist. Raises OSError."""
        self.directory.mkdir(mode=0o755, exist_ok=True)
        self.directory.chmod(0o755)

    def number(self) -> int:
        """Return the inode number of the group's directory; 0 if the directory does not exist.

        Member processes can query the number from the kernel.
        """
        try:
            return self.directory.stat().st_ino
        except OSError:
            return 0

    def exists(self) -> bool:
        return self.directory.is_dir()

    def add(self, pid: int) -> None:
        """Move a process with all its threads into the group. Raises OSError."""
        self._write("cgroup.procs", str(pid))

    def pids(self) -> list[int]:
        """Return the pids of all member processes, sorted."""
        found: set[int] = set()
        for directory in self._directories():
            try:
                with open(f"{directory}/cgroup.procs", "rb", buffering=0) as file:
                    found.update(map(int, file.readall().split()))
            except OSError as error:
                raise_if_exhausted(error)
        return sorted(found - {0})  # 0: in a namespace that is not visible from here

    def populated(self) -> bool:
        """Return True if a live process is in the group; zombies do not count."""
        try:
            descriptor = os.open(f"{self.directory}/{_EVENTS}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise_if_exhausted(error)
            return False
        try:
            return b"populated 1" in os.read(descriptor, _EVENTS_BYTES_MAX).split(b"\n")
        except OSError as error:  # the group has just been removed
            raise_if_exhausted(error)
            return False
        finally:
            os.close(descriptor)

    @property
    def events_path(self) -> Path:
        """File that the kernel reports as modified when the group gets its first process or loses its last one."""
        return self.directory / _EVENTS

    def freeze(self, frozen: bool) -> None:
        """Stop all member processes, or let them continue."""
        with contextlib.suppress(FileNotFoundError):
            self._write("cgroup.freeze", "1" if frozen else "0")

    def kill(self) -> None:
        """Send SIGKILL to all member processes, including those that are being forked."""
        try:
            self._write("cgroup.kill", "1")
        except FileNotFoundError:
            if self.exists():
                self._kill_one_by_one()

    def remove(self) -> bool:
        """Remove the group with all nested groups; return False while a process is in it."""
        for directory in sorted(self._directories(), reverse=True):  # nested groups first
            try:
                directory.rmdir()
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno in {errno.EBUSY, errno.ENOTEMPTY}:
                    return False
                raise
        return True

    def children(self) -> list[str]:
        """Return the names of the groups directly below this group."""
        try:
            return sorted(entry.name for entry in os.scandir(self.directory) if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return []

    def _kill_one_by_one(self) -> None:
        """Freeze the group and kill each process, for kernels before 5.14 without ``cgroup.kill``.

        A frozen group forks no processes, and frozen processes can be killed.
        """
        self.freeze(True)
        try:
            for pid in self.pids():
                with contextlib.suppress(OSError), _pinned(pid) as descriptor:
                    if pid in self.pids():  # checked again: only now does the descriptor pin the process
                        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            self.freeze(False)

    def _directories(self) -> list[Path]:
        found = [self.directory]
        with contextlib.suppress(OSError):
            if os.stat(self.directory).st_nlink == _LINKS_WITHOUT_GROUPS:
                return found
        for directory, names, _ in os.walk(self.directory):
            found += [Path(directory, name) for name in names]
            if len(found) > _NESTED_MAX:
                break
        return found

    def _write(self, name: str, text: str) -> None:
        descriptor = os.open(self.directory / name, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _pinned(pid: int) -> Iterator[int]:
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
