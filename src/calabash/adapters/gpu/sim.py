"""Create, list, read and change simulated nodes: files ``<home>/sim/<name>/node.state``.

The work is done by the native tool ``calabash-simctl``; this module names the files, finds the tool and decodes its
JSON.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from calabash.adapters.gpu.library import simulated_environment, simulated_library_dir
from calabash.adapters.host.children import child_environment, run_program
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_TOOL_TIMEOUT_S = 30.0
_HINTS = {
    "create": "for example --gpus 4xA100-40GB,2xT4",
    "inject": "for example xid 79, ecc-double, lost, recover, slow 300%, throttle thermal, nvlink-down 2",
}
STATE_FILE = "node.state"


class SimProcessDevice(msgspec.Struct, frozen=True, kw_only=True):
    """Use of one simulated card by one process.

    Args:
        index: index of the card.
        alloc_bytes, alloc_peak_bytes: memory that the process has allocated now, and the most that it had.
        context_bytes, context_count: memory and number of its contexts.
        busy_ns: time for which kernels of the process have run.
    """

    index: int
    alloc_bytes: int
    alloc_peak_bytes: int
    context_bytes: int
    context_count: int
    busy_ns: int


class SimProcess(msgspec.Struct, frozen=True, kw_only=True):
    """Process of a simulated node.

    Args:
        pid: its pid in the PID namespace of this process; 0 if it is not visible there.
        owner_pid: its pid as the state file has it, from the PID namespace of the process.
        devices: its use of each card.
    """

    pid: int
    owner_pid: int
    uid: int
    name: str
    devices: tuple[SimProcessDevice, ...]


class SimXid(msgspec.Struct, frozen=True, kw_only=True):
    """XID of a card; ``instance`` is the GPU instance to which the fault was confined, below 0 for the whole card."""

    xid: int
    time_ns: int
    instance: int


class SimDevice(msgspec.Struct, frozen=True, kw_only=True):
    """Simulated card with accounting that no real driver would show.

    Args:
        used_bytes, used_peak_bytes: memory of the allocations and contexts of all processes, now and at most.
        alloc_bytes, alloc_peak_bytes: memory of the allocations alone, now and at most.
        alloc_count, free_count, denied_count: numbers of allocations, of freed allocations, and of refused ones.
        slow_permille: every duration is multiplied by this / 1000.
        timeslice: time-slice class of contexts that share the card.
        nvlink_peers: indexes of the cards that NVLink connects.
    """

    index: int
    uuid: DeviceUuid
    model: str
    name: str
    memory_total_bytes: int
    memory_reserved_bytes: int
    used_bytes: int
    used_peak_bytes: int
    alloc_bytes: int
    alloc_peak_bytes: int
    alloc_count: int
    free_count: int
    denied_count: int
    busy_ns: int
    kernel_count: int
    sm_count: int
    pci_bus_id: str
    numa_node: int
    lost: bool
    slow_permille: int
    ecc_volatile_double: int
    xid_count: int
    xids: tuple[SimXid, ...]
    mig_enabled: bool
    timeslice: int
    nvlink_peers: tuple[int, ...]


class SimUnserved(msgspec.Struct, frozen=True, kw_only=True):
    """Driver function or kernel that the simulation lacks; ``count`` is the number of times that programs used it."""

    name: str
    kind: Literal["function", "kernel"]
    count: int


class SimNode(msgspec.Struct, frozen=True, kw_only=True):
    """State of a simulated node."""

    path: str
    name: str
    driver_version: str
    cuda_version: int
    swept_count: int
    devices: tuple[SimDevice, ...]
    processes: tuple[SimProcess, ...]
    unserved: tuple[SimUnserved, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFile:
    """Name and state file of a simulated node."""

    name: str
    state: Path


def _tool() -> Path:
    tool = simulated_library_dir() / "calabash-simctl"
    if not tool.is_file():
        raise CalabashError(f"{tool} is missing", reason=Reason.NOT_FOUND, hint="build it with: make native")
    return tool


def _run(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Run the tool and return its output. Raises CalabashError with the error line and hint that the tool prints.

    Args:
        environment: further variables of the tool.
    """
    variables = child_environment() | dict(environment or {})
    try:
        done = run_program([str(_tool()), *arguments], timeout_s=_TOOL_TIMEOUT_S, environment=variables)
    except subprocess.TimeoutExpired as error:
        raise CalabashError(
            f"calabash-simctl {arguments[0]} took more than {_TOOL_TIMEOUT_S:g} s", reason=Reason.TIMEOUT
        ) from error
    if done.returncode == 0:
        return done.stdout
    message, hint = f"calabash-simctl {arguments[0]} failed with {done.returncode}", ""
    for line in done.stderr.splitlines():
        if line.startswith("error: "):
            message = line.removeprefix("error: ")
        elif line.startswith("hint: "):
            hint = line.removeprefix("hint: ")
    reason = _reason(message)
    example = _HINTS.get(arguments[0], "") if reason is Reason.BAD_REQUEST else ""
    raise CalabashError(message, reason=reason, hint=hint or example)


def _reason(message: str) -> Reason:
    """Return the reason that belongs to an error message of the tool; BAD_REQUEST if the message is not known."""
    for part, reason in (
        ("disk is full", Reason.DISK_FULL),
        ("No space left", Reason.DISK_FULL),
        ("exists already", Reason.CONFLICT),
        ("still use", Reason.CONFLICT),
        ("is in use", Reason.CONFLICT),
        ("off the bus", Reason.UNHEALTHY),
        ("damaged", Reason.BAD_FILE),
        ("not a node file", Reason.BAD_FILE),
        ("no node at", Reason.NOT_FOUND),
        ("Permission denied", Reason.NOT_PERMITTED),
    ):
        if part in message:
            return reason
    return Reason.BAD_REQUEST


def node_file(home: Path, name: str) -> NodeFile:
    """Return the file of the node with this name; the node need not exist.

    Raises CalabashError(BAD_REQUEST) if the name is not valid.
    """
    if _NAME.fullmatch(name) is None:
        raise CalabashError(
            f"node name {name!r} is not valid",
            hint="use 1 to 63 lower-case letters, digits and '-', with no '-' at either end",
        )
    return NodeFile(name=name, state=home.absolute() / "sim" / name / STATE_FILE)


def find_node(home: Path, name: str) -> NodeFile:
    """Return the file of an existing node. Raises CalabashError(NOT_FOUND) if there is none."""
    node = node_file(home, name)
    if not node.state.exists():
        known = ", ".join(n.name for n in list_nodes(home))
        raise CalabashError(
            f"no simulated node {name!r}",
            reason=Reason.NOT_FOUND,
            hint=f"there are: {known}" if known else f"make it: calabash sim create {name} --gpus 2xA100-40GB",
        )
    return node


def create_node(home: Path, name: str, gpus: str, seed: int | None = None) -> NodeFile:
    """Create a simulated node, with a root directory beside its state file.

    Args:
        home: home of the pool or user to which the node belongs.
        name: name of the node.
        gpus: models and numbers of the cards, such as ``4xA100-40GB,2xT4``.
        seed: number from which the UUIDs are made; the same seed gives the same UUIDs. None for random UUIDs.

    Raises CalabashError: CONFLICT if the node exists, BAD_REQUEST, NOT_PERMITTED.
    """
    node = node_file(home, name)
    existed = node.state.parent.exists()
    try:
        node.state.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CalabashError(
            f"cannot create {node.state.parent}: {error.strerror}",
            reason=Reason.NOT_PERMITTED,
            hint="set CALABASH_HOME to a directory that you own",
        ) from error
    try:
        _run(
            "create", str(node.state), "--gpus", gpus, "--name", name, *(() if seed is None else ("--seed", str(seed)))
        )
    except CalabashError as error:
        if not existed:
            _remove_directory(node.state.parent)
        if error.reason is Reason.CONFLICT:
            raise CalabashError(
                f"simulated node {name!r} exists already",
                reason=Reason.CONFLICT,
                hint=f"remove it first: calabash sim destroy {name}",
            ) from error
        raise
    _run("root", str(node.state))
    return node


def list_nodes(home: Path) -> tuple[NodeFile, ...]:
    """Return all nodes of this home, by name."""
    files = sorted((home.absolute() / "sim").glob(f"*/{STATE_FILE}"))
    return tuple(NodeFile(name=f.parent.name, state=f) for f in files if _NAME.fullmatch(f.parent.name))


def show_node(node: NodeFile, *, environment: Mapping[str, str] | None = None) -> SimNode:
    """Return the state of the node: cards, processes and accounting.

    Args:
        environment: further variables of the tool.

    Raises CalabashError(BAD_FILE) if the tool's output cannot be decoded, or with the tool's own reason.
    """
    try:
        shown = _run("show", str(node.state), "--json", environment=environment)
        return msgspec.json.decode(shown, type=SimNode)
    except msgspec.MsgspecError as error:
        raise CalabashError(
            f"cannot decode the output of calabash-simctl show: {error}", reason=Reason.BAD_FILE
        ) from error


def inject(node: NodeFile, gpu: str, what: str, value: str | None = None) -> None:
    """Cause a fault on a card of a simulated node.

    Args:
        gpu: index or UUID of the card, or ``all``.
        what: kind of the fault, such as ``xid``, ``ecc-double``, ``lost`` or ``slow``.
        value: value of the fault, such as ``79`` for ``xid`` or ``300%`` for ``slow``; None for kinds without one.
    """
    _run("inject", str(node.state), "--gpu", gpu, "--", what, *(() if value is None else (value,)))


def reset_card(state: Path, gpu: str) -> None:
    """Reset a card of a simulated node as the driver's own tool would.

    Args:
        state: state file of the node.
        gpu: index or UUID of the card.

    Raises CalabashError: CONFLICT while the card is in use, UNHEALTHY if it is lost.
    """
    _run("reset", str(state), "--gpu", gpu)


def destroy_node(node: NodeFile, *, force: bool = False) -> None:
    """Remove the node. Raises CalabashError(CONFLICT) while processes use it, unless forced."""
    _run("destroy", str(node.state), *(("--force",) if force else ()))
    _remove_directory(node.state.parent)


def _remove_directory(path: Path) -> None:
    """Remove the directory if it is empty."""
    try:
        path.rmdir()
    except OSError:
        return


def environment(node: NodeFile, inherited: str = "") -> dict[str, str]:
    """Return the variables that a program needs to run on the node.

    Args:
        inherited: value of LD_LIBRARY_PATH that the program would have otherwise.
    """
    return simulated_environment(node.state, inherited)
