"""Programs of other projects that contract tests use unmodified, built from pinned Go modules and kept in ``~/.cache``.

``python -m tests.contract.go_programs`` builds what is missing; ``tools/bootstrap --tests`` calls it. A program is named by
the hash of its module files, and is built under another name and renamed, so that one that exists is complete.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

MODULES = Path(__file__).parent / "go"
PACKAGES = {
    "device-plugin": "github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin",
    "kube-ovn": ".",
    "nvidia-ctk": "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk",
}
BUILD_S = 1800
_UNREACHED = ("dial tcp", "lookup ")


class UnavailableError(Exception):
    """The program cannot be built here: there is no Go, or its modules cannot be fetched."""


def cache() -> Path:
    """Return the directory of built programs and their locks."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "calabash" / "go"


def run_go(module: str, *words: str) -> str:
    """Run ``go`` in the directory of a module and return its output.

    Raises:
        UnavailableError: without Go, or without the servers of Go modules.
        RuntimeError: Go failed for another reason; the text is the end of what it printed.
    """
    if shutil.which("go") is None:
        raise UnavailableError("there is no go")
    done = subprocess.run(
        ["nice", "-n", "5", "go", *words],
        cwd=MODULES / module,
        env=os.environ | {"GOFLAGS": "-mod=readonly"},
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    if done.returncode != 0:
        kind = UnavailableError if any(word in done.stderr for word in _UNREACHED) else RuntimeError
        raise kind(f"go {' '.join(words)} in {module}: {done.stderr.strip()[-4000:]}")
    return done.stdout.strip()


def program(name: str) -> Path:
    """Return the path of a program, which is built if it is missing; a second process waits for the first.

    Raises:
        UnavailableError, RuntimeError: see ``run_go``.
    """
    sources = sorted(path for path in (MODULES / name).iterdir() if path.is_file())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    found = cache() / f"{name}-{digest}"
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            run_go(name, "build", "-p", "2", "-o", f"{found}.new", PACKAGES[name])
            Path(f"{found}.new").rename(found)
    return found


def main() -> int:
    """Build every program, with one line for each that had to be built."""
    for name in PACKAGES:
        began_s = time.monotonic()
        try:
            program(name)
        except (UnavailableError, RuntimeError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        if (took_s := time.monotonic() - began_s) > 1:
            print(f"  building {name:<40} {took_s:6.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
