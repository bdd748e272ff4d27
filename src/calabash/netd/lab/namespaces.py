"""Network namespaces of a lab by name: wired by ``ip`` in batches, entered for sockets, programs and device settings.

A socket that is opened inside a namespace stays there, whoever holds it; a program that is started inside stays, too.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from calabash.model.errors import CalabashError, Reason
from calabash.seams.host.children import run_program
from calabash.seams.links import namespaces
from calabash.seams.links.offloads import switch_off

exists, named = namespaces.exists, namespaces.names
_RUN_S = 60
Made = TypeVar("Made")


def inside(name: str, work: Callable[[], Made]) -> Made:
    """What ``work`` returns when done by a thread inside; raises what it raises, NOT_FOUND where there is no namespace."""
    path = namespaces.path_of(name)
    if not path.exists():
        raise CalabashError(f"there is no network namespace {name}", reason=Reason.NOT_FOUND)
    return namespaces.inside(path, work)


def run(name: str, *argv: str, timeout_s: float = _RUN_S) -> subprocess.CompletedProcess[str]:
    """A program inside, with what it said; its exit code is the caller's to judge."""
    return inside(name, lambda: _run(argv, timeout_s=timeout_s))


def open_socket(name: str, family: int, kind: int, protocol: int = 0) -> socket.socket:
    """A socket of that namespace."""
    return inside(name, lambda: socket.socket(family, kind, protocol))


def ip(commands: Iterable[Sequence[object]], *, name: str = "") -> None:
    """Carries out commands of ``ip``, in a namespace or (namespaces themselves, wires between them) in this one.

    Raises CalabashError with what ``ip`` said; what stood before the failed one has been done.
    """
    lines = "".join(" ".join(map(str, words)) + "\n" for words in commands)
    if not lines:
        return
    where = ("-n", name) if name else ()
    done = _run(("ip", *where, "-batch", "-"), text=lines, timeout_s=_RUN_S)
    if done.returncode != 0:
        said = " ".join(done.stderr.split())
        raise CalabashError(
            f"ip{' in ' + name if name else ''}: {said}",
            reason=Reason.CONFLICT if "exists" in said else Reason.UNSUPPORTED,
            hint="`calabash doctor` and `ip netns list` say what is there",
        )


def without_offloads(name: str, devices: Iterable[str]) -> None:
    """Has senders compute checksums and cut packets, as Open vSwitch's userspace ports cannot; else all TCP stalls."""

    def work() -> None:
        for device in devices:
            switch_off(device)

    inside(name, work)


def set_kernel(name: str, settings: Mapping[str, str]) -> None:
    """Writes settings of the kernel (``net/ipv4/ip_forward``) as a namespace has them; those that it has not are left out."""

    def write() -> None:
        for key, value in settings.items():
            path = Path("/proc/sys", key)
            if path.exists():
                path.write_text(value)

    inside(name, write)


def quiet_default(name: str, *, version6: bool) -> None:
    """IPv6 addresses are valid at once and only those that are set; without any, IPv6 is silent."""
    wanted = {"accept_dad": "0", "accept_ra": "0"} if version6 else {"disable_ipv6": "1"}
    parts = ("all", "default")
    set_kernel(name, {f"net/ipv6/conf/{part}/{key}": value for part in parts for key, value in wanted.items()})


def processes(name: str) -> list[int]:
    """Processes of a namespace."""
    done = _run(("ip", "netns", "pids", name), timeout_s=_RUN_S)
    return [int(word) for word in done.stdout.split()] if done.returncode == 0 else []


def _run(argv: Sequence[str], *, timeout_s: float, text: str = "") -> subprocess.CompletedProcess[str]:
    return run_program(argv, text=text, timeout_s=timeout_s)
