"""Released versions of the product, from which tests upgrade: their wheels, built from their commits.

``python -m tests.releases`` builds those that the cache does not have; ``tools/bootstrap --tests`` calls it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RELEASES = {"0.1.0": "d964c171241e"}  # version and commit; a released wheel never changes
BUILD_LIMIT_S = 600


def release_wheel(version: str) -> Path:
    """Return the wheel of a released version for this machine; build it from its commit if the cache has none.

    Raises:
        LookupError: the repository does not have the commit, as in a shallow clone.
        subprocess.CalledProcessError: the build failed.
    """
    commit = RELEASES[version]
    directory = (
        Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "calabash" / "releases" / f"{version}-{commit}"
    )
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not any(directory.glob("*.whl")):
            _build(commit, directory)
    (wheel,) = directory.glob(f"calabash-{version}-*.whl")
    return wheel


def _build(commit: str, target: Path) -> None:
    known = subprocess.run(
        ["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True, check=False
    )
    if known.returncode != 0:
        raise LookupError(f"commit {commit} is not in this clone; hint: git fetch --unshallow")
    with tempfile.TemporaryDirectory(prefix="calabash-release-") as scratch:
        source = Path(scratch) / "source"
        source.mkdir()
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "-x", "-C", source], input=archive, check=True)
        for name in (".venv", ".tools"):  # the headers of the driver's interface, and the installer
            (source / name).symlink_to(ROOT / name)
        environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "PYTHONPATH")}
        build = [sys.executable, "-m", "tools.wheel", "--out", f"{scratch}/out"]
        subprocess.run(build, cwd=source, env=environment, timeout=BUILD_LIMIT_S, check=True)
        (made,) = (Path(scratch) / "out").glob("*.whl")
        shutil.copyfile(made, target / f".{made.name}")
        (target / f".{made.name}").rename(target / made.name)


def main() -> None:
    """Build all wheels."""
    for version in RELEASES:
        release_wheel(version)


if __name__ == "__main__":
    main()
