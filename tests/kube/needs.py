"""Requirements of a real Kubernetes on the machine. Tests are skipped with the name of what is missing."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.kube import programs

PACKAGES = Path(__file__).resolve().parents[2] / "tools" / "kube-packages.txt"


def lacking(*purposes: str) -> list[str]:
    """Return the missing Debian packages of these purposes: ``cluster``, ``node`` or ``build``."""
    rows = [line.split() for line in PACKAGES.read_text().splitlines() if line and not line.startswith("#")]
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    wanted = [(sought, package) for purpose, sought, package in rows if purpose in purposes]
    return sorted({p for s, p in wanted if not (Path(s).exists() if s[0] == "/" else shutil.which(s, path=path))})


@functools.cache
def absent(*, node: bool = False) -> str:
    """Return the reason why no cluster (with a real node) can run here; "" if one can."""
    if os.geteuid() != 0:
        return "a cluster of one's own needs root, for namespaces"
    packages = lacking("cluster", "node") if node else lacking("cluster")
    if packages:
        return f"Debian packages are missing: {' '.join(packages)}"
    tried = subprocess.run(["unshare", "-m", "-n", "-p", "-i", "-u", "-f", "true"], capture_output=True, check=False)
    if tried.returncode != 0:
        return f"namespaces cannot be made here: {tried.stderr.decode(errors='replace').strip()}"
    try:
        programs.found()
    except programs.MissingError as missing:
        return str(missing)
    return ""


def need(*, node: bool = False) -> None:
    """Skip the calling test if no cluster can run here; fail it if ``CALABASH_KUBE=required``, as in CI."""
    reason = absent(node=node)
    if reason and os.environ.get("CALABASH_KUBE") == "required":
        pytest.fail(f"no Kubernetes for tests: {reason}")
    if reason:
        pytest.skip(f"no Kubernetes for tests: {reason}")
