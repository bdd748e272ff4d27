"""Locations of the programs of appliances: installed on this machine, or in a cached tree of Debian 13 packages."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from calabash.adapters.host.children import find_program
from calabash.controllers.lab import packages
from calabash.controllers.lab.programs import loader_of
from calabash.model.errors import CalabashError, Reason

PACKAGES: Mapping[str, str] = {
    "nft": "nftables",
    "haproxy": "haproxy",
    "keepalived": "keepalived",
    "conntrackd": "conntrackd",
    "conntrack": "conntrack",
}
_READ_ETC = ("keepalived",)  # need files in /etc, which are mounted for them from the tree
_SEARCH = ("usr/sbin", "usr/bin")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceTools:
    """Programs of one location.

    Args:
        tree: directory that contains ``usr/sbin`` of the extracted packages; None: the programs installed on this
            machine are used.
        loader: command line of the dynamic loader that starts programs of the tree with the tree's libraries.
        scripts: directory for start scripts of the programs. A program that restarts itself, such as HAProxy, must be
            able to run the same file again, which would not be possible with the loader's command line.
    """

    tree: Path | None = None
    loader: tuple[str, ...] = ()
    scripts: Path | None = None

    def command(self, name: str) -> tuple[str, ...]:
        """Return the words with which the command line of a program begins.

        Raises CalabashError (UNSUPPORTED), with the name of the package, if the program is not installed.
        """
        if self.tree is None:
            if (path := find_program(name)) is not None:
                return (str(path),)
        else:
            for part in _SEARCH:
                if (self.tree / part / name).exists():
                    return self._tree_command(name, self.tree / part / name)
        raise CalabashError(
            f"{name}, which appliances need, is not installed on this host",
            reason=Reason.UNSUPPORTED,
            hint=f"apt-get install {PACKAGES.get(name, name)}",
        )

    def missing(self) -> list[str]:
        """Return the Debian packages of programs that are not installed."""
        absent = []
        for name, package in PACKAGES.items():
            try:
                self.command(name)
            except CalabashError:
                absent.append(package)
        return absent

    def _tree_command(self, name: str, program: Path) -> tuple[str, ...]:
        if self.scripts is None or self.tree is None:
            return (*self.loader, str(program))
        self.scripts.mkdir(mode=0o700, parents=True, exist_ok=True)
        script = self.scripts / name
        loader, *arguments = self.loader
        words = shlex.join([loader, "--argv0", str(script), *arguments, str(program)])
        text = f'#!/bin/sh\nexec {words} "$@"\n'
        if name in _READ_ETC:
            mounted = f"mount --bind {shlex.quote(str(_private_etc(self.scripts, self.tree)))} /etc"
            text = (
                '#!/bin/sh\n[ -n "$MOUNTED" ] || MOUNTED=1 exec unshare --mount --propagation private "$0" "$@"\n'
                f'{mounted} && unset MOUNTED && exec {words} "$@"\n'
            )
        if not script.exists() or script.read_text() != text:
            fresh = self.scripts / f".{name}"
            fresh.write_text(text)
            fresh.chmod(0o700)
            fresh.replace(script)
        return (str(script),)


def _private_etc(scripts: Path, tree: Path) -> Path:
    """Return a directory with the files that programs of the tree read in /etc; create it if necessary.

    It has keepalived's configuration and the account root, and is mounted at /etc for these programs.

    Args:
        scripts: directory of start scripts, in which the directory is created.
        tree: root of the unpacked packages.
    """
    made = scripts / "etc"
    if not made.exists():
        fresh = scripts / ".etc"
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(tree / "etc" / "keepalived", fresh / "keepalived")
        (fresh / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (fresh / "group").write_text("root:x:0:\n")
        fresh.rename(made)
    return made


def cached(scripts: Path) -> ApplianceTools:
    """Return the programs of the tree in the user's cache; fetch them if they are missing.

    Args:
        scripts: directory for start scripts.

    Raises:
        CalabashError: UNSUPPORTED if they cannot be fetched on this machine, UNREACHABLE if fetching fails.
    """
    tree = packages.fetch(packages.APPLIANCES)
    return ApplianceTools(tree=tree, loader=loader_of(tree), scripts=scripts)


if __name__ == "__main__":  # fetch the packages
    print(packages.fetch(packages.APPLIANCES))
