"""``calabash doctor``: check the requirements of the pool, with a hint for each that is missing."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import calabash
from calabash.adapters.pool.client import SOCKET_FILE
from calabash.adapters.pool.system import SYSTEM_HOME
from calabash.api import endpoints
from calabash.cli import output
from calabash.cli.home import client, home, uses_system_pool
from calabash.cli.output import Column
from calabash.cli.pool.lifecycle import MEMBERSHIP
from calabash.model.errors import CalabashError

_DISK_FREE_MIB_MIN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of a check, ``ok``, ``warn`` or ``fail``, with a hint."""

    check: str
    result: str
    text: str
    hint: str = ""


COLUMNS = (
    Column(title="CHECK", text=lambda r: r["check"]),
    Column(title="RESULT", text=lambda r: r["result"]),
    Column(title="DETAIL", text=lambda r: r["text"]),
)


@click.command()
@output.option
def doctor(fmt: str) -> None:
    """Check the requirements of the pool and show what is missing; exit code 1 if a check fails."""
    findings = [finding for check in (_native, _driver, _home, _pool, _other_users) for finding in check()]
    rows = [{"check": f.check, "result": f.result, "text": f.text, "hint": f.hint} for f in findings]
    output.emit("FindingList", rows, COLUMNS, fmt, name="check")
    for finding in findings:
        if finding.hint and fmt in ("table", "wide"):
            click.echo(f"hint: {finding.check}: {finding.hint}", err=True)
    if any(f.result == "fail" for f in findings):
        sys.exit(1)


def _native() -> Iterator[Finding]:
    root = Path(calabash.__file__).resolve().parent / "_native"
    for name in ("lib/libcalabash.so", "lib/libcalabash-page.so", "simgpu/libcuda.so.1", "simgpu/calabash-simctl"):
        path = root / name
        found, readable = path.is_file(), os.access(path, os.R_OK)
        yield Finding(
            check=path.name,
            result="ok" if found and readable else "fail",
            text=str(path) if found and readable else f"{path} cannot be read" if found else "not built",
            hint="" if found and readable else f"as its owner: chmod o+r {path}" if found else "make native",
        )


def _driver() -> Iterator[Finding]:
    simulated = _simulated_node()
    if simulated:
        yield Finding(check="driver", result="ok", text=f"the pool serves simulated node {simulated}")
        return
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        yield Finding(
            check="driver",
            result="warn",
            text="no NVIDIA driver on this machine",
            hint=f"simulated devices work without a driver: {_simulated_cards()}",
        )
    else:
        yield Finding(check="driver", result="ok", text="libcuda.so.1 loads")
        yield from _coherence()


def _coherence() -> Iterator[Finding]:
    """Check for device memory that programs can allocate without CUDA (coherent memory)."""
    from calabash.adapters.gpu.coherent_memory import memory_nodes  # noqa: PLC0415

    nodes = memory_nodes()
    if nodes:
        yield Finding(
            check="coherence",
            result="warn",
            text=f"the memory of {len(nodes)} cards is also host memory (NUMA nodes {', '.join(map(str, nodes))}):"
            " memory that programs allocate there without CUDA is not limited",
            hint="where tenants share these cards, load the driver with NVreg_CoherentGPUMemoryMode=driver",
        )


def _simulated_node() -> str:
    """Return the name of the simulated node of the running pool; "" for real devices or no pool."""
    try:
        return str(client().send(endpoints.SHOW_STATUS)["sim"])
    except CalabashError:
        return ""


def _simulated_cards() -> str:
    """Return the command that starts the pool on a simulated node, or creates one if there is none."""
    from calabash.adapters.gpu import sim as nodes  # noqa: PLC0415

    there = nodes.list_nodes(home())
    return f"calabash up --sim {there[0].name}" if there else "calabash sim create lab --gpus 2xA100-40GB"


def _home() -> Iterator[Finding]:
    if uses_system_pool():
        yield Finding(check="home", result="ok", text=f"not needed: root's pool at {SYSTEM_HOME} is used")
        return
    directory = home()
    existing = next(p for p in (directory, *directory.parents) if p.exists())
    writable = os.access(existing, os.W_OK)
    yield Finding(
        check="home",
        result="ok" if writable else "fail",
        text=str(directory) if writable else f"{existing} is not writable",
        hint="" if writable else "set CALABASH_HOME to a directory of yours",
    )
    free_mib = shutil.disk_usage(existing).free >> 20
    enough = free_mib >= _DISK_FREE_MIB_MIN
    yield Finding(
        check="disk",
        result="ok" if enough else "fail",
        text=f"{free_mib} MiB free, {_DISK_FREE_MIB_MIN} needed",
        hint="" if enough else f"free some space under {existing}",
    )


def _other_users() -> Iterator[Finding]:
    """Check that other users can run the command, load the shim and reach the socket of root's pool."""
    if os.geteuid() != 0:
        return
    from calabash.cli.pool.doctor_users import attempts  # noqa: PLC0415

    for attempt in attempts(home() / SOCKET_FILE):
        yield Finding(
            check=f"other users: {attempt.subject}",
            result="warn" if attempt.wrong else "ok",
            text=f"other users cannot use it: {attempt.wrong}" if attempt.wrong else "other users can use it",
            hint=attempt.hint,
        )


def membership(status: Mapping[str, Any]) -> Finding:
    """Check if the kernel records the allocation of each process; if it does not, the pool serves its own user only."""
    kernel = status["membership"] == "kernel"
    return Finding(
        check="membership",
        result="ok" if kernel else "warn",
        text=f"serves {status['serves']}: {MEMBERSHIP.get(status['membership'], status['membership'])}",
        hint="" if kernel else "to serve other users, run the pool as root or in a control group that it may write to",
    )


def _pool() -> Iterator[Finding]:
    try:
        status = client().send(endpoints.SHOW_STATUS)
    except CalabashError as error:
        yield Finding(check="pool", result="warn", text=error.message, hint=error.hint or "calabash up")
        return
    yield Finding(check="pool", result="ok", text=f"pid {status['pid']}, {status['devices']} devices")
    yield membership(status)
    arbiter = status.get("arbiter_pid")
    alive = bool(arbiter) and Path(f"/proc/{arbiter}").exists()
    yield Finding(
        check="arbiter",
        result="ok" if alive else "fail",
        text=f"pid {arbiter}" if alive else "the share arbiter is not running; the last limits remain in force",
        hint="" if alive else "see pool.log in the pool's home",
    )
    unhealthy = [d for d in client().send(endpoints.LIST_DEVICES)["items"] if d["health"] != "healthy"]
    for device in unhealthy:
        yield Finding(check=f"gpu {device['index']}", result="fail", text=f"{device['model']} is {device['health']}")
