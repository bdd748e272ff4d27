"""Prometheus and promtool, from Debian's package into the cache, not installed: what is shipped for them is tested with them.

``python -m tools.prometheus`` fetches them and prints where they are.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import debian

PROGRAMS = ("promtool", "prometheus")


def directory() -> Path:
    """Where they are when they have been fetched."""
    return debian.cache() / "prometheus"


def fetched() -> bool:
    """Whether they are there."""
    return all((directory() / name).exists() for name in PROGRAMS)


def fetch() -> Path:
    """The directory with both; fetched once. Raises PackagesError."""
    if fetched():
        return directory()
    directory().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory()) as name:
        place = Path(name)
        download(place)
        (package,) = place.glob("prometheus_*.deb")
        run("dpkg-deb", "-x", str(package), str(place), cwd=place)
        for program in PROGRAMS:
            shutil.move(place / "usr/bin" / program, directory() / program)
    return directory()


def download(place: Path) -> None:
    """Debian's package, as this machine's sources have it."""
    run(
        "apt-get",
        "-q",
        "-o",
        "APT::Sandbox::User=root",
        "-o",
        "Acquire::Retries=3",
        "download",
        "prometheus",
        cwd=place,
    )


def run(*command: str, cwd: Path) -> None:
    """Raises PackagesError with what it said."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise debian.PackagesError(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()}")


if __name__ == "__main__":
    try:
        print(fetch())
    except debian.PackagesError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
