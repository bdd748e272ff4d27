"""Control groups of containers: find, read, freeze and end the groups that the kubelet and the runtime made.

The kubelet names the group of a pod after its UID, below a root of its own (``kubepods``), and the runtime makes one
group in it for each container. On a machine with version 1 controllers, the hierarchy of each controller has these
groups. That of the freezer controller is used, because it can also stop all processes of a group. No group of the
kubelet is created or moved here.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

from calabash.adapters.host.cgroups.groups import Cgroup
from calabash.adapters.host.mounts import Mounted, mounts
from calabash.adapters.host.processes import identify, send_signal

DEPTH_MAX = 6  # groups between the top of the hierarchy and that of a pod
_UID = re.compile(
    r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?$"
)
_SKIPPED = frozenset({"system.slice", "user.slice", "init.scope"})  # large, and never the kubelet's
_KILL_ROUNDS_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerHierarchy:
    """Mounted hierarchy of control groups in which the kubelet makes groups; ``controller`` is "" for version 2."""

    directory: Path
    controller: str

    def group(self, directory: Path) -> Cgroup:
        """Return the group of a directory in the hierarchy."""
        return Cgroup(directory) if not self.controller else FreezerGroup(directory)


class FreezerGroup(Cgroup):
    """Control group of version 1.

    The kernel does not report when such a group becomes empty. To end its processes, the group is frozen and each
    process is killed.
    """

    def populated(self) -> bool:
        """Return True if a live process is in the group; zombies do not count."""
        return any(identify(pid) is not None for pid in self.pids())

    def freeze(self, frozen: bool) -> None:
        """Stop all processes of the group, or let them continue."""
        with contextlib.suppress(FileNotFoundError):
            self._write("freezer.state", "FROZEN" if frozen else "THAWED")

    def kill(self) -> None:
        """Send SIGKILL to all processes of the group; a frozen process dies when the group is thawed."""
        with contextlib.suppress(OSError):
            self.freeze(True)
        try:
            for _ in range(_KILL_ROUNDS_MAX):
                known = [process for pid in self.pids() if (process := identify(pid)) is not None]
                if not sum(send_signal(process, signal.SIGKILL) for process in known) or self._frozen():
                    break
        finally:
            with contextlib.suppress(OSError):
                self.freeze(False)

    def _frozen(self) -> bool:
        try:
            return (self.directory / "freezer.state").read_text().strip() == "FROZEN"
        except OSError:
            return True


def find_container_hierarchy(mounted: list[Mounted] | None = None) -> ContainerHierarchy | None:
    """Return the hierarchy of the kubelet's groups: that of the freezer controller (version 1) if it is mounted.

    Otherwise return that of version 2; None if neither is mounted.

    A container may have several mounts of one hierarchy. In its own mount, the top is the container's group, and the
    mount's root is shown as ``/``. In a mount of the host, the top is above the container's group, and the root is
    shown as one ``/..`` for each level. The outermost mount is returned, because only it has the groups of other pods.
    """
    best: dict[str, tuple[int, Path]] = {}
    for entry in mounts() if mounted is None else mounted:
        outwards = entry.root.count("/..")
        if outwards and entry.root != "/.." * outwards:
            continue  # a part of the hierarchy outside of the own group
        freezer = entry.kind == "cgroup" and entry.directory.name == "freezer"
        if (freezer or entry.kind == "cgroup2") and outwards > best.get(entry.kind, (-1, Path()))[0]:
            best[entry.kind] = (outwards, entry.directory)
    for kind, controller in (("cgroup", "freezer"), ("cgroup2", "")):
        if kind in best:
            return ContainerHierarchy(directory=best[kind][1], controller=controller)
    return None


def pod_groups(hierarchy: ContainerHierarchy) -> dict[str, Path]:
    """Return the group directories of all pods in the hierarchy, by pod UID (32 hexadecimal digits)."""
    found: dict[str, Path] = {}
    level = [hierarchy.directory]
    for _ in range(DEPTH_MAX):
        below: list[Path] = []
        for directory in level:
            for name in _children(directory):
                match = _UID.search(name)
                if match is not None:
                    found[match[1].replace("-", "").replace("_", "")] = directory / name
                elif name not in _SKIPPED:
                    below.append(directory / name)
        level = below
    return found


def container_groups(pod: Path) -> list[Path]:
    """Return the group directories of the pod's containers, including the sandbox."""
    return [pod / name for name in _children(pod)]


def outer_names(name: str) -> list[str]:
    """Return the components of a process's group name (``group_names``), up to and including its container's group.

    The container may create further groups inside of its group. They are left out, because the tenant chooses their
    names.
    """
    parts = name.split("/")
    pod = next((at for at, part in enumerate(parts) if _UID.search(part)), len(parts))
    return parts[: pod + 2]


def join_pod(hierarchy: ContainerHierarchy, pod: Path, name: str, pid: int) -> None:
    """Move a process into a new group ``name`` in a pod's group, beside its containers. Raises OSError.

    The memory and processor time of the process then count for the pod, and the kubelet ends the process with the pod.
    The process survives when the control group of the calling process is ended.

    With version 1, the pod may have groups in further hierarchies. The process joins these groups, too. Otherwise it
    would stay in the calling process's groups there, which could then not be removed.
    """
    below = pod.relative_to(hierarchy.directory)
    group = hierarchy.group(pod / name)
    group.create()
    for entry in mounts():
        other = entry.directory / below / "cgroup.procs"
        if entry.kind in {"cgroup", "cgroup2"} and entry.directory != hierarchy.directory and other.exists():
            with contextlib.suppress(OSError):  # its use is then accounted to this process's group there
                Cgroup(other.parent).add(pid)
    group.add(pid)


def group_names(pid: int, controller: str) -> str:
    """Return the name of a process's group in a hierarchy; "" if the process has ended.

    Args:
        controller: controller of the hierarchy (version 1); "" for version 2.
    """
    try:
        with open(f"/proc/{pid}/cgroup", "rb", buffering=0) as file:
            text = file.read(65536)
    except OSError:
        return ""
    return group_name_in(text, controller)


def group_name_in(text: bytes, controller: str) -> str:
    """Return the group name in the content of ``/proc/<pid>/cgroup``; "" if the content lacks the hierarchy.

    Args:
        controller: controller of the hierarchy (version 1); "" for version 2.
    """
    wanted = controller.encode()
    for line in text.split(b"\n"):
        fields = line.split(b":", 2)
        if len(fields) == 3 and wanted in fields[1].split(b","):
            return os.fsdecode(fields[2])
    return ""


def mounted_devices(pid: int) -> frozenset[int]:
    """Return the device numbers of all mounts in the namespace of a process.

    The mounts show to which allocation a process belongs, because a container has only its own slot. They do not show
    it while a runtime creates the container. At first the process is in the container's group already, but still has
    the mounts of the host, with the slots of all allocations. Then it has the root directories of host and container
    mounted for a moment.

    Returns an empty set in these two cases, and if the process has ended.
    """
    if _has_root_of_host(pid):
        return frozenset()
    try:
        with open(f"/proc/{pid}/mountinfo", "rb") as file:
            text = file.read(4 << 20)
    except OSError:
        return frozenset()
    numbers, roots = set(), 0
    for line in text.splitlines():
        roots += line.split(b" ", 5)[4:5] == [b"/"]
        major, _, minor = line.split(b" ", 3)[2].partition(b":") if line.count(b" ") > 3 else (b"", b"", b"")
        if major.isdigit() and minor.isdigit():
            numbers.add(os.makedev(int(major), int(minor)))
    return frozenset(numbers) if roots < 2 else frozenset()


_ROOT_OF_HOST = "/proc/1/root"


def _has_root_of_host(pid: int) -> bool:
    """Return True if a process has the root directory of the host's first process; False if that cannot be seen."""
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/root"), os.stat(_ROOT_OF_HOST))
    except OSError:
        return False


def _children(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
