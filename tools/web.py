"""Fetch the console's third-party scripts: uPlot, from npm's registry into src/calabash/_web.

    python -m tools.web

Packages are pinned by the hash of their content, fetched by npm's client, and kept in ~/.cache/calabash/web. The repository has
none of their files; a wheel has. Nothing else of npm is run: pages need no build.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "src" / "calabash" / "_web"
FETCH_S = 120
COMPLETE = ".complete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package of the registry: its version, the SHA-512 of its tarball in base64, and the files to take from it."""

    name: str
    version: str
    sha512: str
    files: tuple[str, ...]

    @property
    def archive(self) -> str:
        return f"{self.name}-{self.version}.tgz"


PACKAGES = (
    Package(
        name="uplot",
        version="1.6.32",
        sha512="KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
        files=("dist/uPlot.iife.min.js", "dist/uPlot.min.css"),
    ),
)

# For tests of the console only: checks the accessibility of pages.
AXE = Package(
    name="axe-core",
    version="4.14.1",
    sha512="FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
    files=("axe.min.js",),
)


class AbsentError(Exception):
    """The package cannot be fetched on this machine; the text says why."""


def cache() -> Path:
    """Return the directory in which packages are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "calabash" / "web"


def checked(package: Package, content: bytes) -> bytes:
    """Return the content if its hash is the pinned one. Raises AbsentError."""
    found = base64.b64encode(hashlib.sha512(content).digest()).decode()
    if found != package.sha512:
        raise AbsentError(f"{package.archive} is not what was pinned: its SHA-512 is {found}")
    return content


def fetched(package: Package, directory: Path) -> bytes:
    """Return the package's tarball from the cache or the registry. Raises AbsentError."""
    kept = directory / package.archive
    if kept.is_file():
        return checked(package, kept.read_bytes())
    npm = shutil.which("npm")
    if npm is None:
        raise AbsentError(f"{package.archive} is fetched by npm, which is not here")
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        words = [npm, "pack", "--silent", f"{package.name}@{package.version}"]
        try:
            subprocess.run(words, cwd=scratch, check=True, capture_output=True, timeout=FETCH_S)
        except (OSError, subprocess.SubprocessError) as error:
            raise AbsentError(f"{package.archive} cannot be fetched: {error}") from None
        found = Path(scratch) / package.archive
        content = checked(package, found.read_bytes())
        found.replace(kept)
    return content


def unpacked(package: Package, content: bytes) -> dict[str, bytes]:
    """Return the wanted files by base name, and the license as ``NAME.LICENSE``. Raises AbsentError if one is missing."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        for name in (*package.files, "LICENSE"):
            try:
                part = archive.extractfile(f"package/{name}")
            except KeyError:
                part = None
            if part is None:
                raise AbsentError(f"{package.archive} has no {name}")
            found[f"{package.name}.LICENSE" if name == "LICENSE" else Path(name).name] = part.read()
    return found


def install(target: Path, packages: tuple[Package, ...] = PACKAGES, directory: Path | None = None) -> list[Path]:
    """Write the files of the packages into ``target``; return those that changed."""
    written = []
    target.mkdir(parents=True, exist_ok=True)
    for package in packages:
        for name, content in unpacked(package, fetched(package, directory or cache())).items():
            path = target / name
            if not path.is_file() or path.read_bytes() != content:
                path.write_bytes(content)
                written.append(path)
    (target / COMPLETE).touch()
    return written


def main() -> int:
    try:
        install(TARGET)
    except AbsentError as error:
        print(
            f"error: {error}\nhint: npm and a network are needed once; without, pages do not refresh", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
