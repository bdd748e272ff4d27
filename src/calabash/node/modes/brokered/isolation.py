"""Sandbox of a worker host, and the environment of the tenant's programs that use it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from calabash.adapters.gpu.library import (
    SIM_ENVIRONMENT,
    driver_directories,
    remote_library_dir,
    simulated_library_dir,
    tls_library,
)
from calabash.adapters.host.bubblewrap import PLAIN_NODES, SYSTEM_LIBRARIES, Enclosure
from calabash.adapters.host.pci.device_nodes import node_of
from calabash.model.allocation import AllocationRecord
from calabash.model.request import Slice
from calabash.node.modes.brokered.host import SOCKET_FILE
from calabash.node.modes.protocol import NodeTools
from calabash.node.socket_directory import socket_directory
from calabash.sharing.protocol import Edits, shim_environment

_DIRECTORY_CHARACTERS_MAX = 32
_DRIVER_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
_PLAIN = {"PATH": "/usr/bin:/bin", "HOME": "/", "LANG": "C.UTF-8", "CUDA_CACHE_DISABLE": "1"}


def directory_of(home: Path, name: str) -> Path:
    """Return the directory of a worker host, given the name of its slot, and make its parent.

    A name of more than 32 characters is hashed, because paths of sockets are short. Raises CalabashError.
    """
    if len(name) > _DIRECTORY_CHARACTERS_MAX:
        name = hashlib.sha256(name.encode()).hexdigest()[:_DIRECTORY_CHARACTERS_MAX]
    base = socket_directory(home, "workers", longest=f"/{name}/{SOCKET_FILE}")
    base.mkdir(mode=0o711, exist_ok=True)
    base.chmod(0o711)
    return base / name


def enclosure_of(tools: NodeTools, record: AllocationRecord, slot: Path, *, user: int) -> Enclosure:
    """Return the sandbox of a worker host: the driver's libraries, the devices of the slice, and its slot.

    The sandbox has its own root if the pool may change users. On a simulated node it contains the simulated driver and the
    node's state file instead of devices. If the driver's files are mounted from the host (``DriverFiles``), its libraries are
    taken from there.

    Args:
        tools: tools of the node.
        record: the allocation.
        slot: directory of the allocation's slot.
        user: the user as which workers run; -1: the pool's own.
    """
    shim = shim_environment(record.placement.slices, library=str(tools.library), slot=str(slot))
    sees = [*SYSTEM_LIBRARIES, str(tools.library), str(remote_library_dir() / "calabash-worker"), str(tls_library())]
    writes = [str(slot), *PLAIN_NODES]
    state = tools.environment.get(SIM_ENVIRONMENT)
    if state is not None:
        sees.append(str(simulated_library_dir()))
        writes.append(state)
    else:
        sees.append("/sys")
        writes += _nodes(tools, record)
    libraries = tools.driver_files.libraries
    searched: list[str] = []
    if libraries is not None:
        searched = [str(libraries)]
        sees += [str(libraries), *sorted({str(link.resolve()) for link in libraries.iterdir()})]
    elif state is None:
        searched = [str(path) for path in driver_directories() if not _is_system(path)]
        sees += searched
    found = {"LD_LIBRARY_PATH": ":".join(searched)} if searched else {}
    return Enclosure(
        root=Path("/") if user >= 0 else None,
        sees=sees,
        writes=writes,
        user=user if user >= 0 else None,
        environment={**_PLAIN, **found, **tools.environment, **dict(shim)},
    )


def _is_system(directory: Path) -> bool:
    return any(directory.is_relative_to(known) for known in SYSTEM_LIBRARIES)


def _nodes(tools: NodeTools, record: AllocationRecord) -> list[str]:
    root = tools.device_root
    if root is None:
        return []
    cards = {device.uuid: device for device in tools.inventory.devices()}
    found = [node_of(root, cards[part.device].pci_bus_id) for part in record.placement.slices if part.device in cards]
    common = [root / "dev" / name for name in _DRIVER_NODES]
    return [str(node) for node in (*found, *common) if node is not None and node.exists()]


def program_edits(socket: Path, slices: Sequence[Slice]) -> Edits:
    """Return the changes of the environment of a tenant's program that uses a worker.

    The program gets the remote driver library and the socket of the worker, and no device.
    """
    environment = (
        ("LD_LIBRARY_PATH", str(remote_library_dir())),
        ("CALABASH_REMOTE", f"unix:{socket}"),
        ("CUDA_VISIBLE_DEVICES", ",".join(part.device for part in slices)),
        ("NVIDIA_VISIBLE_DEVICES", "void"),
    )
    return Edits(environment=environment, worker_socket=str(socket))
