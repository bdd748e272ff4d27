"""Resources of a pool on the machine, to check that an attack left nothing behind."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from calabash.adapters.host.cgroups.groups import find_hierarchy
from calabash.node.membership.protocol import group_name

_GROWS = re.compile(r"pool\.(log.*|db.*|lock|sock)|sim/.*|ends/.*")  # bounded elsewhere, never removed
_DESCRIPTORS_SPARE = 12
_THREADS_SPARE = 40  # the worker threads of the API start at their first use, and stay


@dataclass(frozen=True, slots=True, kw_only=True)
class Belongings:
    """Mounts, control groups, files, processes, descriptors and threads of a running pool."""

    mounts: frozenset[str]
    cgroups: frozenset[str]
    files: frozenset[str]
    children: frozenset[int]
    descriptors: int
    threads: int

    @classmethod
    def of_pool(cls, pid: int, home: Path) -> Belongings:
        proc = Path("/proc") / str(pid)
        mounts = [line.split()[4] for line in (proc / "mountinfo").read_text().splitlines()]
        files = _below(home)
        children = [c for task in (proc / "task").iterdir() for c in (task / "children").read_text().split()]
        return cls(
            mounts=frozenset(m for m in mounts if m.startswith(str(home))),
            cgroups=frozenset(_cgroups(home)),
            files=frozenset(f for f in files if not _GROWS.fullmatch(f)),
            children=frozenset(int(c) for c in children),
            descriptors=len(os.listdir(proc / "fd")),
            threads=len(os.listdir(proc / "task")),
        )

    def more_than(self, before: Belongings) -> dict[str, object]:
        """Return the resources that this snapshot has and the earlier one has not; {} if there are none."""
        found: dict[str, object] = {
            "mounts": sorted(self.mounts - before.mounts),
            "cgroups": sorted(self.cgroups - before.cgroups),
            "files": sorted(self.files - before.files),
            "children": max(0, len(self.children) - len(before.children)),
            "descriptors": max(0, self.descriptors - before.descriptors - _DESCRIPTORS_SPARE),
            "threads": max(0, self.threads - before.threads - _THREADS_SPARE),
        }
        return {name: value for name, value in found.items() if value}


def _cgroups(home: Path) -> list[str]:
    """Return the control groups of this home's allocations."""
    hierarchy = find_hierarchy()
    pool = hierarchy.directory / group_name(home) if hierarchy else home / "cgroup"
    return _below(pool, directories=True)


def _below(top: Path, *, directories: bool = False) -> list[str]:
    """Return everything below a directory, as far as it still exists."""
    found = []
    for place, inner, files in os.walk(top):
        names = inner if directories else [*inner, *files]
        found += [os.path.relpath(os.path.join(place, name), top) for name in names]
    return found
