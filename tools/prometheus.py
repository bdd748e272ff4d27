"""Fetch Prometheus and promtool from Debian's package into the cache; tests run shipped rules and alerts with them.

``python -m tools.prometheus`` fetches them and prints their directory.
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
    """Return the directory of the programs in the cache."""
    return debian.cache() / "prometheus"


def fetched() -> bool:
    """Return True if both programs are in the cache."""
    return all((directory() / name).exists() for name in PROGRAMS)


def fetch() -> Path:
    """Return the directory of the programs; fetch them if they are not there. Raises PackagesError."""
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
    """Download Debian's package into a directory, from this machine's sources."""
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
    """Run a command; raise PackagesError with its output if it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise debian.PackagesError(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()}")


if __name__ == "__main__":
    try:
        print(fetch())
    except debian.PackagesError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
