"""The control groups of containers, as the kubelet and the container runtime have made them: found, read, stopped, ended.

The kubelet names the group of a pod after its UID, below a root of its own (``kubepods``), and the runtime makes one group
in it for each container. On a machine with version 1 controllers that is so in each of their hierarchies; the freezer's
serves us there, because it can also stop everybody. Nothing is ever made or moved here: the groups are the kubelet's.
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
_THAW_LOOKS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerHierarchy:
    """A mounted hierarchy in which the kubelet makes groups; ``controller`` is "" for version 2."""

    directory: Path
    controller: str

    def group(self, directory: Path) -> Cgroup:
        """One group of it."""
        return Cgroup(directory) if not self.controller else FreezerGroup(directory)


class FreezerGroup(Cgroup):
    """A group of version 1: nobody tells when it is empty, and it is ended one by one while it is frozen."""

    def populated(self) -> bool:
        """Whether a live process is in it; a zombie is none."""
        return any(identify(pid) is not None for pid in self.pids())

    def freeze(self, frozen: bool) -> None:
        """Stop everybody where they are, or let them go on."""
        with contextlib.suppress(FileNotFoundError):
            self._write("freezer.state", "FROZEN" if frozen else "THAWED")

    def kill(self) -> None:
        """SIGKILL to everybody in it; whoever is frozen dies when it is thawed."""
        with contextlib.suppress(OSError):
            self.freeze(True)
        try:
            for _ in range(_THAW_LOOKS):
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
    """Where the kubelet's groups are: version 2 alone, else the freezer's hierarchy; None when neither is mounted.

    In a control group namespace of our own (not so in privileged containers of containerd) the host's hierarchies bear a
    root of ``/..`` and those that begin with our own group the root ``/``: the outermost serves.
    """
    best: dict[str, tuple[int, Path]] = {}
    for entry in mounts() if mounted is None else mounted:
        outwards = entry.root.count("/..")
        if outwards and entry.root != "/.." * outwards:
            continue  # a part of the hierarchy beside us
        freezer = entry.kind == "cgroup" and entry.directory.name == "freezer"
        if (freezer or entry.kind == "cgroup2") and outwards > best.get(entry.kind, (-1, Path()))[0]:
            best[entry.kind] = (outwards, entry.directory)
    for kind, controller in (("cgroup", "freezer"), ("cgroup2", "")):
        if kind in best:
            return ContainerHierarchy(directory=best[kind][1], controller=controller)
    return None


def pod_groups(hierarchy: ContainerHierarchy) -> dict[str, Path]:
    """The groups of all pods: pod UID (32 hexadecimal digits) -> directory."""
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
    """The groups of the containers of a pod, the sandbox's among them."""
    return [pod / name for name in _children(pod)]


def outer_names(name: str) -> list[str]:
    """The groups that a process is in (``group_names``) from outside inwards, as far as its container's: those within bear
    what names their tenant likes."""
    parts = name.split("/")
    pod = next((at for at, part in enumerate(parts) if _UID.search(part)), len(parts))
    return parts[: pod + 2]


def join_pod(hierarchy: ContainerHierarchy, pod: Path, name: str, pid: int) -> None:
    """Move a process of ours into the group of a pod, beside its containers: what it uses counts as the pod's, the kubelet
    ends it with the pod, and whoever ends our own group does not. Raises OSError.

    It has a group of its own, ``name``, in our hierarchy; in every other one it is in that of the pod, where there is one: a
    group of ours in which it stayed could not be removed when we have ended.
    """
    below = pod.relative_to(hierarchy.directory)
    group = hierarchy.group(pod / name)
    group.create()
    for entry in mounts():
        other = entry.directory / below / "cgroup.procs"
        if entry.kind in {"cgroup", "cgroup2"} and entry.directory != hierarchy.directory and other.exists():
            with contextlib.suppress(OSError):  # it is then accounted to us there
                Cgroup(other.parent).add(pid)
    group.add(pid)


def group_names(pid: int, controller: str) -> str:
    """Name of the group of a process in that hierarchy; "" when it is gone."""
    try:
        with open(f"/proc/{pid}/cgroup", "rb", buffering=0) as file:
            text = file.read(65536)
    except OSError:
        return ""
    return group_name_in(text, controller)


def group_name_in(text: bytes, controller: str) -> str:
    """The name in what ``/proc/<pid>/cgroup`` says, "" when that hierarchy is not there."""
    wanted = controller.encode()
    for line in text.split(b"\n"):
        fields = line.split(b":", 2)
        if len(fields) == 3 and wanted in fields[1].split(b","):
            return os.fsdecode(fields[2])
    return ""


def mounted_devices(pid: int) -> frozenset[int]:
    """Device numbers of everything that is mounted where that process lives; empty when it is gone, or while its container
    is being made.

    A runtime moves a process into the group of a container before it gives the process the root of the container. Until then
    the process sees the mounts of the host, the slots of all allocations among them, which says nothing about whose it is;
    so it does for a moment after that, while the root of the host is mounted over that of the container.
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
