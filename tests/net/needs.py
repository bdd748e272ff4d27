"""Requirements of a lab of network namespaces on the machine; tests skip, naming what is missing."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

import pytest

from calabash.controllers.lab import packages, programs


@functools.cache
def absent(*, packets: bool = True) -> str:
    """Return the reason why no lab (with packets) can run here; "" if one can."""
    if packets and os.geteuid() != 0:
        return "namespaces need root"
    if packets and not Path("/dev/net/tun").exists():
        return "/dev/net/tun is missing"
    if packets and programs.missing_commands():
        return f"Debian packages are missing: {' '.join(programs.missing_commands())}"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False) if packets else None
    if tried is not None and tried.returncode != 0:
        return f"network namespaces cannot be made here: {tried.stderr.decode(errors='replace').strip()}"
    if programs.find() is None:
        return "OVN is not here: tools/bootstrap --tests fetches it"
    return ""


def need_appliances() -> None:
    """Skip the calling test if HAProxy or another program of the appliances is missing, as ``need`` does."""
    need()
    if packages.fetched(packages.APPLIANCES):
        return
    reason = "HAProxy and keepalived are not here: tools/bootstrap --tests fetches them"
    if os.environ.get("CALABASH_NET") == "required":
        pytest.fail(reason)
    pytest.skip(reason)


def need(*, packets: bool = True) -> None:
    """Skip the calling test if no lab can run here; fail it if ``CALABASH_NET=required``, as in CI."""
    reason = absent(packets=packets)
    if reason and os.environ.get("CALABASH_NET") == "required":
        pytest.fail(f"no network for tests: {reason}")
    if reason:
        pytest.skip(f"no network for tests: {reason}")
