"""Where the programs are that appliances run: of this machine, or of a tree of Debian 13 out of the cache."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from calabash.model.errors import CalabashError, Reason
from calabash.netd.lab import packages
from calabash.netd.lab.programs import loader_of
from calabash.seams.host.children import find_program

PACKAGES: Mapping[str, str] = {
    "nft": "nftables",
    "haproxy": "haproxy",
    "keepalived": "keepalived",
    "conntrackd": "conntrackd",
    "conntrack": "conntrack",
}
_READ_ETC = ("keepalived",)  # demand a file of theirs in /etc, which of a tree only they see
_SEARCH = ("usr/sbin", "usr/bin")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceTools:
    """The programs of one tree.

    Args:
        tree: where ``usr/sbin`` is; None: this machine's own.
        loader: the dynamic loader and its arguments that programs of a tree are started with.
        scripts: a directory for scripts that start them, as a program that starts itself again must be found by one name.
    """

    tree: Path | None = None
    loader: tuple[str, ...] = ()
    scripts: Path | None = None

    def command(self, name: str) -> tuple[str, ...]:
        """The beginning of a command line. Raises CalabashError(UNSUPPORTED) with the package that has it."""
        if self.tree is None:
            if (path := find_program(name)) is not None:
                return (str(path),)
        else:
            for part in _SEARCH:
                if (self.tree / part / name).exists():
                    return self._of_tree(name, self.tree / part / name)
        raise CalabashError(
            f"{name} is not on this host, which appliances need",
            reason=Reason.UNSUPPORTED,
            hint=f"apt-get install {PACKAGES.get(name, name)}",
        )

    def missing(self) -> list[str]:
        """Packages whose programs are not there."""
        absent = []
        for name, package in PACKAGES.items():
            try:
                self.command(name)
            except CalabashError:
                absent.append(package)
        return absent

    def _of_tree(self, name: str, program: Path) -> tuple[str, ...]:
        if self.scripts is None or self.tree is None:
            return (*self.loader, str(program))
        self.scripts.mkdir(mode=0o700, parents=True, exist_ok=True)
        script = self.scripts / name
        loader, *arguments = self.loader
        words = shlex.join([loader, "--argv0", str(script), *arguments, str(program)])
        text = f'#!/bin/sh\nexec {words} "$@"\n'
        if name in _READ_ETC:
            mounted = f"mount --bind {shlex.quote(str(_own_etc(self.scripts, self.tree)))} /etc"
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


def _own_etc(scripts: Path, tree: Path) -> Path:
    """A directory that a program of the tree sees as /etc: what it demands of its package, and who root is."""
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
    """The programs of the tree in the user's cache, fetched where they are not there; ``scripts``: a directory for ours.

    Raises CalabashError, UNSUPPORTED where they cannot be fetched here, UNREACHABLE where that fails.
    """
    tree = packages.fetch(packages.APPLIANCES)
    return ApplianceTools(tree=tree, loader=loader_of(tree), scripts=scripts)


if __name__ == "__main__":  # fetches them where they are not
    print(packages.fetch(packages.APPLIANCES))
