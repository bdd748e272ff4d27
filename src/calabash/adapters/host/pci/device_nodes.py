"""Device nodes of cards: from a PCI address to the file through which programs open the card."""

from __future__ import annotations

import re
from pathlib import Path

_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])")
_CAPABILITY = re.compile(r"^DeviceFileMinor:\s*(\d+)\s*$", re.MULTILINE)
_MINOR = re.compile(r"^Device Minor:\s*(\d+)\s*$", re.MULTILINE)


def node_of(root: Path, pci_bus_id: str) -> Path | None:
    """Return ``/dev/nvidiaN`` of an NVIDIA card below ``root``; None if the driver reports none."""
    address = _ADDRESS.fullmatch(pci_bus_id.lower())
    if address is None:
        return None
    name = f"{address[1][-4:]}:{address[2]}"
    try:
        text = (root / "proc/driver/nvidia/gpus" / name / "information").read_text(errors="replace")
    except OSError:
        return None
    minor = _MINOR.search(text)
    path = root / "dev" / f"nvidia{minor[1]}" if minor else None
    return path if path is not None and path.exists() else None


def mig_nodes_of(root: Path, pci_bus_id: str, instance: int, part: int) -> tuple[Path, ...]:
    """Return the ``/dev/nvidia-caps/nvidia-capN`` nodes of a GPU instance and one of its compute instances.

    Nodes that the driver does not report are left out.

    Args:
        root: directory at which the root of the machine is mounted.
        pci_bus_id: PCI address of the card.
        instance: number of the GPU instance.
        part: number of the compute instance.
    """
    card = node_of(root, pci_bus_id)
    if card is None:
        return ()
    below = root / "proc/driver/nvidia/capabilities" / f"gpu{card.name.removeprefix('nvidia')}" / f"mig/gi{instance}"
    found = []
    for access in (below / "access", below / f"ci{part}" / "access"):
        try:
            minor = _CAPABILITY.search(access.read_text(errors="replace"))
        except OSError:
            continue
        path = root / "dev/nvidia-caps" / f"nvidia-cap{minor[1]}" if minor else None
        if path is not None and path.exists():
            found.append(path)
    return tuple(found)
