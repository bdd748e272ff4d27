"""A PCI tree on disk that answers writes as a kernel does: for simulated nodes and for tests.

The files are those that ``pci`` reads; ``SimulatedKernel.write`` is what would happen in the kernel. All state is in the tree.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from calabash.adapters.host.pci.simulated_bus import SimulatedBus, SimulatedPci, refusal
from calabash.adapters.host.pci.simulated_functions import SimulatedParts


class SimulatedKernel:
    """``KernelWriter`` over a tree below ``root``. Not for two writers at once."""

    def __init__(self, root: Path, *, modules: Sequence[str] = ("vfio_pci", "vfio_iommu_type1")) -> None:
        self.root = root
        self._bus = SimulatedBus(root)
        self._parts = SimulatedParts(self._bus)
        for module in modules:
            self.load(module)

    def load(self, module: str) -> None:
        """``modprobe``, of a module that there is."""
        self._bus.load(module)

    def plug(self, device: SimulatedPci) -> None:
        """Let a device appear, driven by its driver. One that is there stays as it is; one of which a simulated node shows
        only what it is gets what it takes to be given away."""
        self._bus.plug(device)

    def write(self, path: Path, text: str, *, timeout_s: float) -> None:
        """As a write to that file would end."""
        if not path.exists():
            raise refusal(errno.ENOENT, path)
        place, word = path.parent, text.strip()
        if path.name == "unbind":
            self._bus.unbind(path, word, timeout_s)
        elif path.name == "bind":
            self._bus.bind(path, place.name, word)
        elif path.name == "drivers_probe":
            self._bus.probe(path, word)
        elif path.name == "sriov_numvfs":
            self._parts.numvfs(path, place, int(word), timeout_s)
        elif path.name == "create":
            self._parts.create(path, place, word)
        elif path.name == "remove":
            self._parts.remove(path, place, timeout_s)
        else:
            path.write_text((word or "(null)") + "\n")
