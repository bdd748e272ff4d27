"""Control groups, version 2: who belongs together, whether anybody is left, freezing and ending all of them at once.

Membership is inherited by every child and is changed only by whoever may write to the group's directory, so it
survives daemonising, closed descriptors, new sessions and exec. Only that is used of them; no controller is enabled,
so a version 2 hierarchy beside version 1 controllers is enough.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from calabash.adapters.host.failures import require_told
from calabash.adapters.host.mounts import Mounted, mount, mounts

_EVENTS, _EVENTS_BYTES_MAX = "cgroup.events", 4096
_LINKS_WITHOUT_GROUPS = 2  # of a directory: its name and its own "."; every group inside adds one
_NESTED_MAX = 10_000  # groups inside a group that are looked at; a tenant who is root may make more


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupHierarchy:
    """A mounted hierarchy: its directory, and the name that /proc/<pid>/cgroup gives to the group at its top."""

    directory: Path
    top: str


def find_hierarchy(mounted: list[Mounted] | None = None) -> CgroupHierarchy | None:
    """The hierarchy as it is mounted here and may be written to; None when it is not."""
    for entry in mounts() if mounted is None else mounted:
        inside = entry.root == "/" or "/.." not in entry.root  # "/..": mounted from outside of our namespace
        if entry.kind == "cgroup2" and inside and entry.writable:
            return CgroupHierarchy(directory=entry.directory, top=entry.root.rstrip("/"))
    return None


def mount_hierarchy(directory: Path) -> CgroupHierarchy:
    """Mount it at a directory of ours. Raises OSError when that is not permitted."""
    directory.mkdir(mode=0o700, exist_ok=True)
    mount("calabash", directory, "cgroup2", "nosuid,nodev,noexec")
    return CgroupHierarchy(directory=directory, top="")


def group_of(pid: int) -> str | None:
    """Name of the group of a process; None when it is gone or the name cannot be read."""
    try:
        with open(f"/proc/{pid}/cgroup", "rb", buffering=0) as file:
            text = file.read(65536)
    except OSError as error:
        require_told(error)
        return None
    for line in text.split(b"\n"):
        if line.startswith(b"0::/"):
            with contextlib.suppress(UnicodeDecodeError):
                return line[3:].decode()
    return None


class Cgroup:
    """One group and everything nested in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def create(self) -> None:
        """Make it; nothing when it is there. Raises OSError."""
        self.directory.mkdir(mode=0o755, exist_ok=True)
        self.directory.chmod(0o755)

    def number(self) -> int:
        """Inode number of its directory, by which the kernel tells it to its members; 0 when there is none."""
        try:
            return self.directory.stat().st_ino
        except OSError:
            return 0

    def exists(self) -> bool:
        return self.directory.is_dir()

    def add(self, pid: int) -> None:
        """Move a process with all its threads here. Raises OSError."""
        self._write("cgroup.procs", str(pid))

    def pids(self) -> list[int]:
        """Everybody in it, by pid."""
        found: set[int] = set()
        for directory in self._directories():
            try:
                with open(f"{directory}/cgroup.procs", "rb", buffering=0) as file:
                    found.update(map(int, file.readall().split()))
            except OSError as error:
                require_told(error)
        return sorted(found - {0})  # 0: of a namespace that we cannot see into

    def populated(self) -> bool:
        """Whether a live process is in it; a zombie is none."""
        try:
            descriptor = os.open(f"{self.directory}/{_EVENTS}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            require_told(error)
            return False
        try:
            return b"populated 1" in os.read(descriptor, _EVENTS_BYTES_MAX).split(b"\n")
        except OSError as error:  # the group has just been removed
            require_told(error)
            return False
        finally:
            os.close(descriptor)

    @property
    def events_path(self) -> Path:
        """The file that the kernel reports as modified when the group gets its first process or loses its last one."""
        return self.directory / _EVENTS

    def freeze(self, frozen: bool) -> None:
        """Stop everybody where they are, or let them go on."""
        with contextlib.suppress(FileNotFoundError):
            self._write("cgroup.freeze", "1" if frozen else "0")

    def kill(self) -> None:
        """SIGKILL to everybody in it, those being born included."""
        try:
            self._write("cgroup.kill", "1")
        except FileNotFoundError:
            if self.exists():
                self._kill_one_by_one()

    def remove(self) -> bool:
        """Remove it with what is nested; False while somebody is in it."""
        for directory in sorted(self._directories(), reverse=True):  # what lies deeper comes first
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
        """Names of the groups directly in it."""
        try:
            return sorted(entry.name for entry in os.scandir(self.directory) if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return []

    def _kill_one_by_one(self) -> None:
        """For kernels before 5.14: nobody is born while the group is frozen, and the frozen can be killed."""
        self.freeze(True)
        try:
            for pid in self.pids():
                with contextlib.suppress(OSError), _pinned(pid) as descriptor:
                    if pid in self.pids():  # the descriptor pins the process; only now does its group mean anything
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
