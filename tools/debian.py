"""Unpack Debian packages into a directory, without dpkg and without running their scripts: for images.

APT chooses and fetches the packages from this machine's sources, as for a machine on which nothing is installed. Packages
that only an installation needs (debconf, perl) are left out.
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
    """APT or dpkg-deb failed; the text is their message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DebianPackage:
    """A Debian package: the fields of its control file, and the path of its archive."""

    name: str
    version: str
    architecture: str
    file: Path
    fields: Mapping[str, str]

    @property
    def source(self) -> str:
        """Return the name of the source package that it was built from."""
        return self.fields.get("Source", self.name).partition(" ")[0]


def cache() -> Path:
    """Return the directory in which fetched packages are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "calabash" / "debian"


def fetch(roots: Sequence[str], cache: Path, architecture: str = "") -> list[DebianPackage]:
    """Return the packages ``roots`` and all that they depend on, by name; fetch those that ``cache`` lacks.

    For another architecture than this machine's (``arm64``), the packages come from the same sources, with package lists in
    ``cache``. The lists are fetched if there are none, and again if the servers no longer have a package that they name.

    Raises:
        PackagesError: APT failed.
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
    """Download by the lists in ``lists``; update them first if there are none, and once more if a server then fails."""
    if any(lists.glob("*_Packages*")):
        with contextlib.suppress(PackagesError):
            return _download(apt, roots)
    with contextlib.suppress(PackagesError):
        return _updated(apt, roots, lists)
    return _updated(apt, roots, lists)


def _updated(apt: Sequence[str], roots: Sequence[str], lists: Path) -> list[tuple[str, str, str]]:
    """Update the lists and download by them."""
    (lists / "partial").mkdir(parents=True, exist_ok=True)  # an update that failed may have removed it
    _run(*apt, "update")
    return _download(apt, roots)


def _download(apt: Sequence[str], roots: Sequence[str]) -> list[tuple[str, str, str]]:
    chosen: list[tuple[str, str, str]] = _CHOSEN.findall(_run(*apt, "--simulate", "install", *roots))
    if not chosen:
        raise PackagesError(f"APT chose no packages for {' '.join(roots)}")
    _run(*apt, "--download-only", "install", *roots)
    return chosen


def reached(roots: Iterable[str], packages: Iterable[DebianPackage]) -> list[DebianPackage]:
    """Return the packages that the roots depend on, except by way of ``LEFT_OUT``."""
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
    """Unpack the packages into a directory, without manuals and translations.

    Control files go to ``var/lib/dpkg/status.d``, where scanners of images find them. Raises PackagesError.
    """
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
            path.chmod(path.stat().st_mode & 0o755)  # no setuid and setgid bits in an image


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
    """Return the package names of ``libc6 (>= 2.34), debconf (>= 0.5) | debconf-2.0``, without versions and architectures."""
    parts = (word.strip() for group in relations.split(",") for word in group.split("|"))
    return [re.split(r"[ :(\[]", part, maxsplit=1)[0] for part in parts if part]


def _run(*command: str, stdin: subprocess.Popen[bytes] | None = None) -> str:
    source = stdin.stdout if stdin is not None else subprocess.DEVNULL
    done = subprocess.run(command, stdin=source, capture_output=True, text=True, check=False, errors="replace")
    if done.returncode != 0:
        raise PackagesError(f"{command[0]} ended with {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return done.stdout
