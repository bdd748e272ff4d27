"""Programs of OVN and Open vSwitch: those of this machine if they are new enough, else cached packages of Debian 13.

Programs of the cached tree are started by the tree's dynamic loader with the tree's libraries. So they need no chroot,
no mounts and no root rights, and are as fast as installed programs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from calabash.adapters.host.children import find_program, run_program
from calabash.controllers.lab import packages
from calabash.model.errors import CalabashError, Reason

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
    """Programs of OVN and Open vSwitch in one tree (``/`` for installed ones).

    Args:
        tree: root directory of the tree.
        loader: command line of the dynamic loader, to which a program is appended; empty for installed programs.
        ovs, ovn: versions of Open vSwitch and OVN.
    """

    tree: Path
    loader: tuple[str, ...]
    ovs: Version
    ovn: Version

    def command(self, name: str) -> tuple[str, ...]:
        """Return the words with which the command line of a program begins. Raises CalabashError (NOT_FOUND)."""
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
        """Return the path of the schema of a database: ``nb``, ``sb`` or ``vswitch``."""
        return self.tree / _SCHEMAS[name]


def find() -> OvnPrograms | None:
    """Return usable programs without fetching any, or None."""
    own, _ = installed()
    if own is not None:
        return own
    return of_tree(packages.cached()) if packages.fetched() else None


def get() -> OvnPrograms:
    """Return usable programs; fetch them if necessary.

    Raises CalabashError if fetching fails; the message also says why installed programs are not used.
    """
    found = find()
    if found is not None:
        return found
    _, why = installed()
    try:
        return of_tree(packages.fetch())
    except CalabashError as error:
        raise CalabashError(f"{error.message} ({why})", reason=error.reason, hint=error.hint) from error


def installed(tree: Path = Path("/")) -> tuple[OvnPrograms | None, str]:
    """Return the installed programs, or None and the reason why they are not used."""
    absent = [name for name in _NEEDED if not any((tree / part / name).exists() for part in _SEARCH)]
    absent += [name for name in _SCHEMAS.values() if not (tree / name).exists()]
    if absent:
        return None, f"OVN is not installed here: no {absent[0]}"
    own = _read(tree, ())
    why = version_problem(own.ovs, own.ovn)
    return (None, why) if why else (own, "")


def version_problem(ovs: Version, ovn: Version) -> str:
    """Return the reason why these versions are not used, or ""."""
    if ovs < OVS_MIN:
        return (
            f"Open vSwitch {version_text(ovs)} is installed; before {version_text(OVS_MIN)} its userspace datapath aborts "
            "when a client reuses source ports"
        )
    if ovn < OVN_MIN:
        return f"OVN {version_text(ovn)} is installed; the oldest supported version is {version_text(OVN_MIN)}"
    return ""


def of_tree(tree: Path) -> OvnPrograms:
    """Return the programs of an unpacked tree. Raises CalabashError if they do not run."""
    return _read(tree, loader_of(tree))


def loader_of(tree: Path) -> tuple[str, ...]:
    """Return the dynamic loader of an unpacked tree and its arguments. Raises CalabashError (BAD_FILE) if it has none."""
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
        output = (done.stderr or done.stdout).strip()[:200]
        raise CalabashError(
            f"{command[-1]} does not run: {output}",
            reason=Reason.BAD_FILE,
            hint=f"remove {packages.cached()} and run `calabash net up` again",
        )
    return (int(found[1]), int(found[2]), int(found[3]))


def version_text(version: Version) -> str:
    """Format a version: ``3.5.0``."""
    return ".".join(map(str, version))


def missing_commands() -> list[str]:
    """Return the missing Debian packages that are needed to create links and namespaces."""
    return [package for command, package in {"ip": "iproute2"}.items() if find_program(command) is None]


if __name__ == "__main__":  # fetch the packages
    print(get().tree)
