"""Requirements of a real Kubernetes on the machine. Tests are skipped with the name of what is missing."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.kube import programs

_COMMANDS = {"unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux", "openssl": "openssl"}
_NODE_COMMANDS = {"ip": "iproute2", "gcc": "gcc libc6-dev", "iptables": "iptables"}
_NODE_FILES = {"/usr/lib/cni/ptp": "containernetworking-plugins", "/bin/busybox": "busybox-static"}


@functools.cache
def absent(*, node: bool = False) -> str:
    """Return the reason why no cluster (with a real node) can run here; "" if one can."""
    if os.geteuid() != 0:
        return "a cluster of one's own needs root, for namespaces"
    commands = {**_COMMANDS, **(_NODE_COMMANDS if node else {})}
    packages = {package for command, package in commands.items() if shutil.which(command) is None}
    if node:
        packages |= {package for path, package in _NODE_FILES.items() if not Path(path).exists()}
    if packages:
        return f"Debian packages are missing: {' '.join(sorted(packages))}"
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
