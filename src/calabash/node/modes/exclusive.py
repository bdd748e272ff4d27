"""Executor of mode exclusive: the tenant sees only its devices, and no other user may open their device nodes.

If the pool runs as root, the device node of each device is guarded: owner root, the tenant in the access
list, no other user. The previous access is written to ``guards.json`` in the pool's home first, so that it is restored when
the allocation ends, or by the next pool if this one dies.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import structlog

from calabash.adapters.host.pci.device_nodes import node_of
from calabash.model.allocation import AllocationRecord
from calabash.model.errors import CalabashError
from calabash.node.modes.compute_modes import ComputeModes
from calabash.node.modes.file_guards import Guards
from calabash.node.modes.protocol import NodeTools, ViewOnly
from calabash.node.slots.open_pages import Pages
from calabash.sharing import exclusive

log = structlog.get_logger(__name__)


class ExclusiveExecutor(ViewOnly):
    """Executor of whole devices.

    The slot restricts the visible devices and has no limits. Only the tenant may open the device nodes. Optionally, a
    device accepts only one process at a time.
    """

    name = exclusive.MODE.name

    def __init__(self, tools: NodeTools) -> None:
        super().__init__(tools)
        self._guards = Guards(tools.home / "guards.json")
        self._compute = ComputeModes(tools.home / "compute-modes.exclusive.json", tools.inventory.driver_of)

    def enter(self, record: AllocationRecord, pages: Pages) -> None:
        del pages
        if record.uid < 0:
            return
        for part in record.placement.slices:
            path = self._node(part.device)
            if path is not None:
                self._guard(record, path)
        self._one_process(record)

    def leave(self, record: AllocationRecord) -> None:
        self._guards.restore(record.id)
        for part in record.placement.slices:
            self._compute.restore(part.device)

    def recover(self, held: Sequence[AllocationRecord]) -> None:
        self._guards.keep_only({record.id for record in held})
        self._compute.keep_only({part.device for record in held for part in record.placement.slices})
        self._guards.renew()  # the previous pool may have died after it recorded a guard and before it set it

    def verify(self, held: Sequence[AllocationRecord]) -> list[str]:
        """Restrict the access to device nodes again if it was changed; return a line for each of them.

        A helper program of the driver opens the access again for any program that asks it to.
        """
        del held
        return [f"access to {path} had been changed and is guarded again" for path in self._guards.renew()]

    def _guard(self, record: AllocationRecord, path: str) -> None:
        try:
            self._guards.set(record.id, path, uid=record.uid)
        except CalabashError as error:
            if not self._tools.environment:
                raise
            log.warning("the device node of a simulated device is not guarded", path=path, error=error.message)

    def _node(self, uuid: str) -> str | None:
        root = self._tools.device_root
        if root is None or os.geteuid() != 0:
            return None
        device = next((d for d in self._tools.inventory.devices() if d.uuid == uuid), None)
        found = node_of(root, device.pci_bus_id) if device is not None else None
        return str(found) if found is not None else None

    def _one_process(self, record: AllocationRecord) -> None:
        if not self._tools.one_process:
            return
        for part in record.placement.slices:
            try:
                self._compute.make_exclusive(part.device)
            except CalabashError as error:
                log.warning("the compute mode could not be set", device=part.device, error=error.message)


def open_mode(tools: NodeTools) -> ExclusiveExecutor:
    """Return the executor of mode exclusive."""
    return ExclusiveExecutor(tools)
