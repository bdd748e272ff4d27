"""Device nodes of cards: from a PCI address to the file through which programs open the card."""

from __future__ import annotations

import re
from pathlib import Path

_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])")
_MINOR = re.compile(r"^Device Minor:\s*(\d+)\s*$", re.MULTILINE)


def node_of(root: Path, pci_bus_id: str) -> Path | None:
    """``/dev/nvidiaN`` of an NVIDIA card below ``root``; None when the driver names none."""
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
