"""Simulated PCI tree on disk that answers writes as a kernel does, for simulated nodes and tests.

The files are those that ``devices`` reads; ``SimulatedKernel.write`` does what the kernel would. All state is in the
tree.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from calabash.adapters.host.pci.simulated_bus import SimulatedBus, SimulatedPci, refusal
from calabash.adapters.host.pci.simulated_functions import SimulatedFunctions


class SimulatedKernel:
    """Implementation of ``KernelWriter`` over a tree below ``root``. Not safe for two concurrent writers."""

    def __init__(self, root: Path, *, modules: Sequence[str] = ("vfio_pci", "vfio_iommu_type1")) -> None:
        self.root = root
        self._bus = SimulatedBus(root)
        self._functions = SimulatedFunctions(self._bus)
        for module in modules:
            self.load(module)

    def load(self, module: str) -> None:
        """Load a kernel module, as ``modprobe`` does."""
        self._bus.load(module)

    def plug(self, device: SimulatedPci) -> None:
        """Add a device with its driver bound.

        An existing device is kept. A simulated node makes only some files of a device; the missing files, which
        passthrough needs, are added.
        """
        self._bus.plug(device)

    def write(self, path: Path, text: str, *, timeout_s: float) -> None:
        """Apply a write to a file of the tree, or raise the error that the kernel would report."""
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
            self._functions.numvfs(path, place, int(word), timeout_s)
        elif path.name == "create":
            self._functions.create(path, place, word)
        elif path.name == "remove":
            self._functions.remove(path, place, timeout_s)
        else:
            path.write_text((word or "(null)") + "\n")
