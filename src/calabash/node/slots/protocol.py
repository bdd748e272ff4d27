"""Slots: directories ``alloc/<slot name>/`` with the two shared pages of an allocation.

Programs read their limits from the page ``limits`` and write their use to the page ``usage``. There are two forms of
slots with one interface: **tmpfs** for pools of root, **files** for other pools and if no file system can be mounted.
The form is chosen when the pool starts and shown in its status.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from calabash.model.request import AllocationId
from calabash.node.slots.content import SlotSpec
from calabash.node.slots.files import FileSlots
from calabash.node.slots.names import SlotNames
from calabash.node.slots.open_pages import Pages
from calabash.node.slots.tmpfs import TmpfsSlots


class Slots(Protocol):
    """Slots of one pool. ``pages`` may be called from any thread; everything else is called under the agent's lock."""

    @property
    def form(self) -> str:
        """Form of the slots, as the status of the pool shows it: ``tmpfs`` or ``files``."""
        ...

    @property
    def root(self) -> Path:
        """Directory of the slots."""
        ...

    @property
    def sealed(self) -> bool:
        """True if programs can distinguish slots from imitations by other users (sealed slots).

        Processes that become members are then marked, so that they accept sealed slots only.
        """
        ...

    def path(self, allocation: AllocationId) -> Path:
        """Return the path of a slot, which need not exist. Raises CalabashError if the id is not a plain name."""
        ...

    def pages(self, allocation: AllocationId) -> Pages:
        """Return the pages of a slot. Raises CalabashError(BAD_FILE) if a page is missing, damaged or resized."""
        ...

    def create(self, spec: SlotSpec) -> None:
        """Create a slot; an existing one is kept. Raises CalabashError; no part of the slot is left then."""
        ...

    def bind(self, allocation: AllocationId, group: int) -> None:
        """Write the control group of an allocation to its limits and seal the slot, before a program uses it.

        Args:
            group: inode number of the group; 0: the allocation has no separate group.

        Raises:
            CalabashError: the slot cannot be sealed.
        """
        ...

    def remove(self, allocation: AllocationId) -> None:
        """Remove a slot; do nothing if there is none."""
        ...

    def exists(self, allocation: AllocationId) -> bool:
        """Return True if there is a complete slot of that allocation."""
        ...

    def all(self) -> list[AllocationId]:
        """Return the allocations of all complete slots."""
        ...

    def sweep(self) -> None:
        """Remove slots that a crash has left partly created or removed."""
        ...


def choose_slots(root: Path, *, membership: str, names: SlotNames | None = None, mounted: bool = False) -> Slots:
    """Return the strongest form of slots that this process may use.

    That is tmpfs if members are known by control groups (``membership`` is "kernel") and a tmpfs can be mounted.

    Args:
        names: names of the slots.
        root: directory of the slots.
        mounted: programs see their slots only through mounts of a container runtime, so other users of the host get no
            access to ``root``.
    """
    mode = 0o711 if os.geteuid() == 0 and not mounted else 0o700
    if membership == "kernel":
        in_memory = TmpfsSlots(root, mode=mode, names=names)
        if in_memory.works():
            return in_memory
    return FileSlots(root, mode=mode, names=names)
