"""Capabilities of this machine for a soak; parts that cannot run are left out, and the log lists them."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ACCOUNTS = ("games", "news", "mail")  # exist on every Debian and run nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Capabilities. ``interpreter``: a Python that every account may start. ``aside``: the parts left out, with reasons."""

    root: bool
    accounts: tuple[str, ...]
    interpreter: str
    networks: bool
    tmpfs: bool
    aside: tuple[str, ...]


def examine(*, networks: bool) -> Machine:
    """Examine this machine; ``networks``: include tenant networks if possible."""
    aside: list[str] = []
    root = os.geteuid() == 0
    interpreter = shutil.which("python3", path="/usr/bin:/bin") or ""
    accounts: tuple[str, ...] = ()
    if not root:
        aside.append("several accounts, control groups, networks and a full disk: they need root")
    else:
        known = {entry.pw_name for entry in pwd.getpwall()}
        accounts = tuple(name for name in ACCOUNTS if name in known) if interpreter else ()
        if not accounts:
            aside.append("several accounts: there is no /usr/bin/python3, or none of " + ", ".join(ACCOUNTS))
    reason = no_networks() if networks and root else ""
    if reason:
        aside.append(f"networks: {reason}")
    aside.append("a calendar that jumps: it would be the machine's; tests of metering play it in virtual time")
    return Machine(
        root=root,
        accounts=accounts,
        interpreter=interpreter or os.path.realpath("/proc/self/exe"),
        networks=networks and root and not reason,
        tmpfs=root,
        aside=tuple(aside),
    )


def no_networks() -> str:
    """Return the reason why there can be no tenant networks; empty if there can."""
    from calabash.controllers.lab import programs  # noqa: PLC0415 - only where they are asked for

    if not Path("/dev/net/tun").exists():
        return "/dev/net/tun is missing"
    if missing := programs.missing_commands():
        return f"Debian packages are missing: {' '.join(missing)}"
    if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode:
        return "network namespaces cannot be made here"
    return "" if programs.find() else "OVN is not here: tools/bootstrap --tests fetches it"
