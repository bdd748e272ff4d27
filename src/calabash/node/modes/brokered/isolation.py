"""What a host of workers sees of the machine, and what its tenant's programs are told instead."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from calabash.adapters.gpu.library import SIM_ENVIRONMENT, remote_library_dir, simulated_library_dir
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
    """Return where the host of an allocation has its socket, given the name of its slot. Names of sockets are short, and
    what another program mounts has to lie in the home. Raises CalabashError."""
    if len(name) > _DIRECTORY_CHARACTERS_MAX:
        name = hashlib.sha256(name.encode()).hexdigest()[:_DIRECTORY_CHARACTERS_MAX]
    base = socket_directory(home, "workers", longest=f"/{name}/{SOCKET_FILE}")
    base.mkdir(mode=0o711, exist_ok=True)
    base.chmod(0o711)
    return base / name


def enclosure_of(tools: NodeTools, record: AllocationRecord, slot: Path, *, user: int) -> Enclosure:
    """The driver's libraries, the cards of the slice, and the slice itself; a root of its own where we may give one.

    On a simulated node the driver is the simulated one, and its cards are the node's state. Where the driver is a host's whose
    files we see elsewhere, its libraries are those of ``DriverFiles``.
    """
    shim = shim_environment(record.placement.slices, library=str(tools.library), slot=str(slot))
    sees = [*SYSTEM_LIBRARIES, str(tools.library), str(remote_library_dir() / "calabash-worker")]
    writes = [str(slot), *PLAIN_NODES]
    state = tools.environment.get(SIM_ENVIRONMENT)
    if state is not None:
        sees.append(str(simulated_library_dir()))
        writes.append(state)
    else:
        sees.append("/sys")
        writes += _nodes(tools, record)
    libraries = tools.driver_files.libraries
    found = {} if libraries is None else {"LD_LIBRARY_PATH": str(libraries)}
    if libraries is not None:
        sees += [str(libraries), *sorted({str(link.resolve()) for link in libraries.iterdir()})]
    return Enclosure(
        root=Path("/") if user >= 0 else None,
        sees=sees,
        writes=writes,
        user=user if user >= 0 else None,
        environment={**_PLAIN, **found, **tools.environment, **dict(shim)},
    )


def _nodes(tools: NodeTools, record: AllocationRecord) -> list[str]:
    root = tools.device_root
    if root is None:
        return []
    cards = {device.uuid: device for device in tools.inventory.devices()}
    found = [node_of(root, cards[part.device].pci_bus_id) for part in record.placement.slices if part.device in cards]
    common = [root / "dev" / name for name in _DRIVER_NODES]
    return [str(node) for node in (*found, *common) if node is not None and node.exists()]


def program_edits(socket: Path, slices: Sequence[Slice]) -> Edits:
    """A driver that has no card behind it but a worker, and nothing of the slice or of the node."""
    environment = (
        ("LD_LIBRARY_PATH", str(remote_library_dir())),
        ("CALABASH_REMOTE", f"unix:{socket}"),
        ("CUDA_VISIBLE_DEVICES", ",".join(part.device for part in slices)),
        ("NVIDIA_VISIBLE_DEVICES", "void"),
    )
    return Edits(environment=environment, worker_socket=str(socket))
