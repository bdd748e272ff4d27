"""Which OVN and Open vSwitch are used: this machine's where they are new enough, else Debian 13's out of the cache.

Programs of the cached tree are started by its own dynamic loader with its own libraries, so that they need no chroot, no
mount and no root, and run as fast as installed ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from calabash.model.errors import CalabashError, Reason
from calabash.netd.lab import packages
from calabash.seams.host.children import find_program, run_program

_VERSION_S = 60.0
OVS_MIN, OVN_MIN = (3, 1, 3), (24, 0, 0)
_SEARCH = ("usr/lib/openvswitch-switch", "usr/sbin", "usr/bin")
_SCHEMAS = {
    "nb": "usr/share/ovn/ovn-nb.ovsschema",
    "sb": "usr/share/ovn/ovn-sb.ovsschema",
    "vswitch": "usr/share/openvswitch/vswitch.ovsschema",
}
_NEEDED = (
    "ovs-vswitchd",
    "ovsdb-server",
    "ovsdb-tool",
    "ovs-vsctl",
    "ovs-appctl",
    "ovs-ofctl",
    "ovn-northd",
    "ovn-controller",
    "ovn-nbctl",
    "ovn-sbctl",
    "ovn-trace",
    "ovn-appctl",
)
Version = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class OvnPrograms:
    """The programs of OVN and Open vSwitch, of one tree (``/`` for the machine's own).

    Args:
        loader: the dynamic loader and its arguments before a program, empty for the machine's own programs.
    """

    tree: Path
    loader: tuple[str, ...]
    ovs: Version
    ovn: Version

    def command(self, name: str) -> tuple[str, ...]:
        """The beginning of a command line that runs ``ovn-nbctl`` and the like. Raises CalabashError(NOT_FOUND)."""
        for part in _SEARCH:
            path = self.tree / part / name
            if path.exists():
                return (*self.loader, str(path))
        raise CalabashError(
            f"{name} is not in {self.tree}",
            reason=Reason.NOT_FOUND,
            hint=f"remove {packages.cached()} and run `calabash net up` again",
        )

    def schema(self, name: str) -> Path:
        """The schema of a database: ``nb``, ``sb``, ``vswitch``."""
        return self.tree / _SCHEMAS[name]


def find() -> OvnPrograms | None:
    """What is there without fetching anything; None when nothing usable is."""
    own, _ = installed()
    if own is not None:
        return own
    return of_tree(packages.cached()) if packages.fetched() else None


def get() -> OvnPrograms:
    """As :func:`find`, and otherwise fetched. Raises CalabashError, with why the machine's own are not used."""
    found = find()
    if found is not None:
        return found
    _, why = installed()
    try:
        return of_tree(packages.fetch())
    except CalabashError as error:
        raise CalabashError(f"{error.message} ({why})", reason=error.reason, hint=error.hint) from error


def installed(tree: Path = Path("/")) -> tuple[OvnPrograms | None, str]:
    """The machine's own, or None and why they are not used."""
    absent = [name for name in _NEEDED if not any((tree / part / name).exists() for part in _SEARCH)]
    absent += [name for name in _SCHEMAS.values() if not (tree / name).exists()]
    if absent:
        return None, f"OVN is not installed here: no {absent[0]}"
    own = _read(tree, ())
    why = refused(own.ovs, own.ovn)
    return (None, why) if why else (own, "")


def refused(ovs: Version, ovn: Version) -> str:
    """Why these versions are not used, "" when they are."""
    if ovs < OVS_MIN:
        return (
            f"Open vSwitch {text(ovs)} is installed; before {text(OVS_MIN)} its userspace datapath aborts "
            "when a client uses its source ports again"
        )
    if ovn < OVN_MIN:
        return f"OVN {text(ovn)} is installed, {text(OVN_MIN)} is the oldest that is used"
    return ""


def of_tree(tree: Path) -> OvnPrograms:
    """The programs of an unpacked tree. Raises CalabashError where they do not run."""
    return _read(tree, loader_of(tree))


def loader_of(tree: Path) -> tuple[str, ...]:
    """The dynamic loader of an unpacked tree with its arguments before a program. Raises CalabashError where it has none."""
    libraries = sorted(tree.glob("usr/lib/*-linux-gnu"))
    loaders = sorted(tree.glob("usr/lib/*-linux-gnu/ld-linux-*.so.*"))
    if not libraries or not loaders:
        raise CalabashError(
            f"{tree} has no C library", reason=Reason.BAD_FILE, hint=f"remove {tree}; it will be fetched again"
        )
    return (str(loaders[0]), "--inhibit-cache", "--library-path", ":".join(map(str, libraries)))


def _read(tree: Path, loader: tuple[str, ...]) -> OvnPrograms:
    unread = OvnPrograms(tree=tree, loader=loader, ovs=(0, 0, 0), ovn=(0, 0, 0))
    ovs, ovn = (_version(unread.command(name)) for name in ("ovs-vswitchd", "ovn-controller"))
    return OvnPrograms(tree=tree, loader=loader, ovs=ovs, ovn=ovn)


def _version(command: tuple[str, ...]) -> Version:
    done = run_program([*command, "--version"], timeout_s=_VERSION_S)
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", done.stdout.partition("\n")[0])
    if done.returncode != 0 or found is None:
        said = (done.stderr or done.stdout).strip()[:200]
        raise CalabashError(
            f"{command[-1]} does not run: {said}",
            reason=Reason.BAD_FILE,
            hint=f"remove {packages.cached()} and run `calabash net up` again",
        )
    return (int(found[1]), int(found[2]), int(found[3]))


def text(version: Version) -> str:
    """``3.5.0``."""
    return ".".join(map(str, version))


def missing_commands() -> list[str]:
    """Debian packages without which namespaces cannot be wired."""
    return [package for command, package in {"ip": "iproute2"}.items() if find_program(command) is None]


if __name__ == "__main__":  # fetches them where they are not
    print(get().tree)
