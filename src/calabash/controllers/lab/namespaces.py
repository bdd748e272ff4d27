"""Network namespaces of a lab: configure them with batches of ``ip`` commands, open sockets and run programs in them.

A socket stays in the namespace in which it was opened, even if a process of another namespace uses it.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from calabash.adapters.host.children import run_program
from calabash.adapters.links import namespaces
from calabash.adapters.links.offloads import switch_off
from calabash.model.errors import CalabashError, Reason

exists, named = namespaces.exists, namespaces.names
_RUN_S = 60
Made = TypeVar("Made")


def inside(name: str, work: Callable[[], Made]) -> Made:
    """Call ``work`` in a thread that has entered the namespace, and return its result.

    Raises CalabashError (NOT_FOUND) if the namespace does not exist.
    """
    path = namespaces.path_of(name)
    if not path.exists():
        raise CalabashError(f"network namespace {name} does not exist", reason=Reason.NOT_FOUND)
    return namespaces.inside(path, work)


def run(name: str, *argv: str, timeout_s: float = _RUN_S) -> subprocess.CompletedProcess[str]:
    """Run a program in the namespace; return its result, whatever the exit status."""
    return inside(name, lambda: _run(argv, timeout_s=timeout_s))


def open_socket(name: str, family: int, kind: int, protocol: int = 0) -> socket.socket:
    """Open a socket in the namespace."""
    return inside(name, lambda: socket.socket(family, kind, protocol))


def ip(commands: Iterable[Sequence[object]], *, name: str = "") -> None:
    """Carry out commands of ``ip`` in a namespace, or in the current one if ``name`` is "".

    Raises:
        CalabashError: with the output of ``ip``; commands before the failed one have been carried out.
    """
    lines = "".join(" ".join(map(str, words)) + "\n" for words in commands)
    if not lines:
        return
    where = ("-n", name) if name else ()
    done = _run(("ip", *where, "-batch", "-"), text=lines, timeout_s=_RUN_S)
    if done.returncode != 0:
        output = " ".join(done.stderr.split())
        raise CalabashError(
            f"ip{' in ' + name if name else ''}: {output}",
            reason=Reason.CONFLICT if "exists" in output else Reason.UNSUPPORTED,
            hint="see `calabash doctor` and `ip netns list`",
        )


def without_offloads(name: str, devices: Iterable[str]) -> None:
    """Disable checksum and segmentation offloads of devices in a namespace.

    Open vSwitch in userspace gets packets without checksums otherwise, and TCP connections stall.
    """

    def work() -> None:
        for device in devices:
            switch_off(device)

    inside(name, work)


def set_kernel(name: str, settings: Mapping[str, str]) -> None:
    """Write kernel settings (``net/ipv4/ip_forward``) of a namespace; missing settings are ignored."""

    def write() -> None:
        for key, value in settings.items():
            path = Path("/proc/sys", key)
            if path.exists():
                path.write_text(value)

    inside(name, write)


def quiet_default(name: str, *, version6: bool) -> None:
    """Set the IPv6 defaults of a namespace, so that its interfaces send no packets of their own.

    With ``version6``, static IPv6 addresses can be used, without router advertisements and duplicate address detection.
    Otherwise IPv6 is disabled.
    """
    wanted = {"accept_dad": "0", "accept_ra": "0"} if version6 else {"disable_ipv6": "1"}
    parts = ("all", "default")
    set_kernel(name, {f"net/ipv6/conf/{part}/{key}": value for part in parts for key, value in wanted.items()})


def processes(name: str) -> list[int]:
    """Return the process IDs in a namespace."""
    done = _run(("ip", "netns", "pids", name), timeout_s=_RUN_S)
    return [int(word) for word in done.stdout.split()] if done.returncode == 0 else []


def _run(argv: Sequence[str], *, timeout_s: float, text: str = "") -> subprocess.CompletedProcess[str]:
    return run_program(argv, text=text, timeout_s=timeout_s)
