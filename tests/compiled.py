"""Programs that tests compile, kept in ``build/tests/compiled`` and shared by all workers of all runs.

A build is named by the hash of its command line and of every C source in the tree, so it is made again when anything
that it could depend on has changed, and only then. A lock on a file makes the second worker wait for the first.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / "build" / "tests" / "compiled"
_SOURCES = (ROOT / "native", ROOT / "build" / "native", ROOT / "tests", ROOT / "bench" / "programs")
_KEPT_S = 3 * 86_400
_SUFFIXES = {".c", ".h", ".cu", ".map", ".mk", ".tsv", ".txt"}


@functools.cache
def _tree() -> str:
    """Return the hash of all files that a compiler may read here."""
    digest = hashlib.sha256()
    for root in _SOURCES:
        for path in sorted(p for p in root.rglob("*") if p.suffix in _SUFFIXES and p.is_file()):
            digest.update(f"{path.relative_to(ROOT)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def compiled(name: str, command: Sequence[str | Path]) -> Path:
    """Return the file named ``name`` that ``command -o FILE`` makes. A compiler that fails shows its output."""
    words = [str(word) for word in command]

    def make(directory: Path) -> None:
        done = subprocess.run(
            [*words, "-o", str(directory / name)], capture_output=True, text=True, errors="replace", check=False
        )
        assert done.returncode == 0, done.stderr

    return built(name, words, make) / name


def _forget_old() -> None:
    """Remove builds that no run of the last days has made; no process can still be using them."""
    for path in CACHE.iterdir():
        if path.is_dir() and time.time() - path.stat().st_mtime > _KEPT_S:
            shutil.rmtree(path, ignore_errors=True)


def built(name: str, words: Sequence[str | Path], make: Callable[[Path], None]) -> Path:
    """Return the directory that ``make`` filled; its content depends on ``words`` besides the sources."""
    digest = hashlib.sha256("\0".join([_tree(), *map(str, words)]).encode()).hexdigest()[:16]
    out = CACHE / f"{name}-{digest}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not out.is_dir():
            half = CACHE / f"{name}.{os.getpid()}.part"
            half.mkdir(exist_ok=True)
            make(half)
            half.rename(out)
            _forget_old()
    return out
