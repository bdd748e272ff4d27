"""Fetch the parts of an emulated machine: QEMU, its firmware, a Debian kernel and its modules, as files in a cache.

Nothing is installed: APT fetches the packages from this machine's sources, and they are unpacked. Libraries that this
machine has are not fetched. ``python -m tools.emulated`` fills the cache; the tests of ``tests/vfio`` build the machine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_ROOTS = ("qemu-system-x86", "seabios")
_KERNEL = "linux-image-cloud-amd64"
_CHOSEN = re.compile(r"^Inst (\S+) \(", re.MULTILINE)
_DEPENDS = re.compile(r"^\s+Depends: (linux-image-\S+)", re.MULTILINE)
_MODULE_DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")


class AbsentError(Exception):
    """The parts cannot be fetched on this machine; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulated:
    """Paths of the emulator, its firmware and its kernel."""

    tree: Path

    @property
    def libraries(self) -> str:
        """Return the search path of libraries for LD_LIBRARY_PATH."""
        return f"{self.tree}/usr/lib/x86_64-linux-gnu:{self.tree}/lib/x86_64-linux-gnu"

    @property
    def qemu(self) -> list[str]:
        """Return the emulator and its search paths, the first words of a command; needs ``libraries``."""
        share = (f"{self.tree}/usr/share/{name}" for name in ("qemu", "seabios"))
        return [f"{self.tree}/usr/bin/qemu-system-x86_64", *(word for place in share for word in ("-L", place))]

    @property
    def virtiofsd(self) -> str:
        """Return the program that shares a directory of this machine with the guest; needs ``libraries``."""
        return f"{self.tree}/usr/lib/qemu/virtiofsd"

    @property
    def kernel(self) -> Path:
        """Return the newest kernel that was fetched."""
        return max((self.tree / "boot").glob("vmlinuz-*"))

    def modules(self, *names: str) -> list[Path]:
        """Return the named modules and their dependencies in the order of loading, without those that are built in."""
        release = self.kernel.name.partition("-")[2]
        there = {p.stem.replace("-", "_"): p for p in (self.tree / "lib/modules" / release).rglob("*.ko")}
        found: dict[str, Path] = {}

        def add(name: str) -> None:
            path = there.get(name.replace("-", "_"))
            if path is None or path.stem in found:
                return
            needs = _MODULE_DEPENDS.search(path.read_bytes())
            for need in needs[1].decode().split(",") if needs else []:
                add(need)
            found[path.stem] = path

        for name in names:
            add(name)
        return list(found.values())


def cache() -> Path:
    """Return the directory in which the parts are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "calabash" / "vfio"


def found(*, fetch: bool = True) -> Emulated:
    """Return the parts from the cache; fetch them first if it is not filled. Raises AbsentError."""
    here = Emulated(tree=cache() / "tree")
    if not (cache() / "complete").exists():
        if not fetch:
            raise AbsentError(f"{cache()} is not filled; python -m tools.emulated fills it")
        _fetch(here.tree)
        (cache() / "complete").touch()
    return here


def _fetch(tree: Path) -> None:
    if os.uname().machine != "x86_64":
        raise AbsentError(f"the packages are for x86_64, and this is {os.uname().machine}")
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise AbsentError("it is made of Debian packages, and there is no apt-get here")
    tree.parent.mkdir(parents=True, exist_ok=True)
    try:
        names = _names()
    except AbsentError:
        _run("apt-get", "update", "-qq")
        names = _names()
    with tempfile.TemporaryDirectory(dir=tree.parent) as scratch:
        _run("apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", *names, cwd=scratch)
        fresh = Path(scratch) / "tree"
        for package in sorted(Path(scratch).glob("*.deb")):
            _run("dpkg-deb", "-x", str(package), str(fresh))
        for needless in ("usr/share/doc", "usr/share/man", "usr/share/locale"):
            shutil.rmtree(fresh / needless, ignore_errors=True)
        shutil.rmtree(tree, ignore_errors=True)
        fresh.rename(tree)


def _names() -> list[str]:
    """Return the packages to fetch: QEMU, its libraries that are not installed here, and the newest kernel."""
    options = ("-o", "APT::Install-Recommends=false", "-o", "Debug::NoLocking=true")
    chosen = _CHOSEN.findall(_run("apt-get", "-q", "-y", "--simulate", "--reinstall", *options, "install", *_ROOTS))
    kernel = _DEPENDS.search(_run("apt-cache", "depends", _KERNEL))
    if not chosen or kernel is None:
        raise AbsentError(f"APT knows no {' '.join(_ROOTS)} or no {_KERNEL}")
    return sorted({*chosen, *_ROOTS, "qemu-system-common", "qemu-system-data", kernel[1]})


def _run(*command: str, cwd: str | None = None) -> str:
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, check=False, errors="replace", timeout=600
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AbsentError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise AbsentError(
            f"{' '.join(command[:3])} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}"
        )
    return done.stdout


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{found().kernel}\n")
    except AbsentError as error:
        sys.exit(f"no emulated machine: {error}")
