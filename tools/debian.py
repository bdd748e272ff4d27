"""Debian packages as files in a directory, without dpkg and without running anything of theirs: for images.

APT chooses and fetches, from this machine's sources, as for a machine on which nothing is installed. What is only needed to
install packages (debconf, perl) is left out, as nothing is ever installed there.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LEFT_OUT = frozenset({"debconf", "dpkg", "install-info", "mawk", "perl-base"})
_MERGED = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")  # directories that are links into /usr
_PRUNED = (
    "usr/share/man",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/lintian",
    "usr/share/bug",
    "usr/share/menu",
)
_CHOSEN = re.compile(r"^Inst (\S+) \((\S+) .*\[(\S+)\]\)", re.MULTILINE)


class PackagesError(Exception):
    """APT or dpkg-deb said no; the text is theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DebianPackage:
    """One package: what it says of itself, and its file."""

    name: str
    version: str
    architecture: str
    file: Path
    fields: Mapping[str, str]

    @property
    def source(self) -> str:
        """The source package that it was built from."""
        return self.fields.get("Source", self.name).partition(" ")[0]


def cache() -> Path:
    """Where fetched packages are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "calabash" / "debian"


def fetch(roots: Sequence[str], cache: Path, architecture: str = "") -> list[DebianPackage]:
    """The packages ``roots`` and all that they depend on, fetched into ``cache`` where they are not there; by name.

    For another architecture than this machine's (``arm64``), from the same sources, with lists of packages in ``cache``. These
    are fetched when there are none and when they name what the servers have no more. Raises PackagesError.
    """
    archives = cache / "archives"
    (archives / "partial").mkdir(parents=True, exist_ok=True)
    nothing = cache / "status"
    nothing.write_text("")
    options = {
        "Dir::State::status": nothing,
        "Dir::Cache::archives": archives,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "true",
        "Acquire::Retries": "3",
        "APT::Update::Error-Mode": "any",  # a list that is missing would otherwise be found out by the packages that are
    }
    lists = cache / f"lists-{architecture}"
    if architecture:
        (lists / "partial").mkdir(parents=True, exist_ok=True)
        options |= {
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "Dir::State::lists": lists,
            "Dir::Cache::pkgcache": "",
            "Dir::Cache::srcpkgcache": "",
        }
    apt = ["apt-get", "-q", "-y", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]
    chosen = _download_by_lists(apt, roots, lists) if architecture else _download(apt, roots)
    packages = [_read(archives / f"{n}_{v.replace(':', '%3a')}_{a}.deb") for n, v, a in chosen]
    return sorted(reached(roots, packages), key=lambda package: package.name)


def _download_by_lists(apt: Sequence[str], roots: Sequence[str], lists: Path) -> list[tuple[str, str, str]]:
    """Fetches lists where there are none, and where what they name cannot be had: once more if a server then fails."""
    if any(lists.glob("*_Packages*")):
        with contextlib.suppress(PackagesError):
            return _download(apt, roots)
    with contextlib.suppress(PackagesError):
        _run(*apt, "update")
        return _download(apt, roots)
    _run(*apt, "update")
    return _download(apt, roots)


def _download(apt: Sequence[str], roots: Sequence[str]) -> list[tuple[str, str, str]]:
    chosen: list[tuple[str, str, str]] = _CHOSEN.findall(_run(*apt, "--simulate", "install", *roots))
    if not chosen:
        raise PackagesError(f"APT chose no packages for {' '.join(roots)}")
    _run(*apt, "--download-only", "install", *roots)
    return chosen


def reached(roots: Iterable[str], packages: Iterable[DebianPackage]) -> list[DebianPackage]:
    """Those that the roots need, not by way of ``LEFT_OUT``."""
    by_name: dict[str, DebianPackage] = {}
    for package in packages:
        for name in (package.name, *_names(package.fields.get("Provides", ""))):
            by_name.setdefault(name, package)
    found: dict[str, DebianPackage] = {}
    waiting = list(roots)
    while waiting:
        package_or_none = by_name.get(waiting.pop())
        if package_or_none is None or package_or_none.name in found or package_or_none.name in LEFT_OUT:
            continue
        found[package_or_none.name] = package_or_none
        for field in ("Pre-Depends", "Depends"):
            waiting += _names(package_or_none.fields.get(field, ""))
    return list(found.values())


def unpack(packages: Iterable[DebianPackage], tree: Path) -> None:
    """Puts their files into a directory, but for manuals and translations; scanners find what is there in
    ``var/lib/dpkg/status.d``. Raises PackagesError."""
    for name in _MERGED:
        (tree / "usr" / name).mkdir(parents=True, exist_ok=True)
        (tree / name).symlink_to(f"usr/{name}")
    status = tree / "var" / "lib" / "dpkg" / "status.d"
    status.mkdir(parents=True)
    for package in packages:
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package.file], stdout=subprocess.PIPE) as unpacking:
            _run("tar", "-x", "-C", str(tree), "--keep-directory-symlink", "--no-same-owner", stdin=unpacking)
        if unpacking.returncode != 0:
            raise PackagesError(f"dpkg-deb cannot read {package.file}")
        (status / package.name).write_text(_run("dpkg-deb", "-f", str(package.file)))
    _prune(tree)


def _prune(tree: Path) -> None:
    for directory in _PRUNED:
        shutil.rmtree(tree / directory, ignore_errors=True)
    for path in sorted((tree / "usr" / "share" / "doc").rglob("*"), reverse=True):
        if path.is_symlink() or (path.is_file() and path.name != "copyright"):
            path.unlink()  # what the licences ask for stays
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    for name in _MERGED:
        if not any((tree / "usr" / name).iterdir()):
            (tree / "usr" / name).rmdir()
            (tree / name).unlink()
    for path in tree.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o755)  # nothing in here runs as somebody else


def _read(file: Path) -> DebianPackage:
    fields: dict[str, str] = {}
    for line in _run("dpkg-deb", "-f", str(file)).splitlines():
        key, colon, value = line.partition(": ")
        if colon and not line.startswith(" "):
            fields[key] = value
    return DebianPackage(
        name=fields["Package"],
        version=fields["Version"],
        architecture=fields["Architecture"],
        file=file,
        fields=fields,
    )


def _names(relations: str) -> list[str]:
    """Names in ``libc6 (>= 2.34), debconf (>= 0.5) | debconf-2.0``, versions and architectures left out."""
    parts = (word.strip() for group in relations.split(",") for word in group.split("|"))
    return [re.split(r"[ :(\[]", part, maxsplit=1)[0] for part in parts if part]


def _run(*command: str, stdin: subprocess.Popen[bytes] | None = None) -> str:
    source = stdin.stdout if stdin is not None else subprocess.DEVNULL
    done = subprocess.run(command, stdin=source, capture_output=True, text=True, check=False, errors="replace")
    if done.returncode != 0:
        raise PackagesError(f"{command[0]} ended with {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return done.stdout
