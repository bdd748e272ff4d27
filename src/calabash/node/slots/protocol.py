"""Slots: ``alloc/<allocation>/`` with limits and usage, through which limits reach a tenant and its use is seen.

Two forms behind one protocol: **tmpfs** for pools of root, **files** for all others and where nothing may be mounted.
Which form a pool has is decided when it starts and told in its status.
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
    """The slots of one pool. Pages may be asked for from any thread; everything else is done under the agent's lock."""

    @property
    def form(self) -> str:
        """``tmpfs`` or ``files``."""
        ...

    @property
    def root(self) -> Path:
        """The directory that they lie in."""
        ...

    @property
    def sealed(self) -> bool:
        """True if programs can tell the slots from imitations; processes that are taken in are marked then."""
        ...

    def path(self, allocation: AllocationId) -> Path:
        """Where a slot is or would be. Raises CalabashError for an id that is no plain name."""
        ...

    def pages(self, allocation: AllocationId) -> Pages:
        """The pages of a slot. Raises CalabashError(BAD_FILE) when they are not what the pool has made."""
        ...

    def create(self, spec: SlotSpec) -> None:
        """Make a slot; one of that name that exists is kept. Raises CalabashError and then nothing of it is left."""
        ...

    def bind(self, allocation: AllocationId, group: int) -> None:
        """Write the number of the control group of an allocation into its limits, and seal the slot, before a program
        looks for it. ``group`` 0: it has none of its own. Raises CalabashError."""
        ...

    def remove(self, allocation: AllocationId) -> None:
        """Take a slot away; nothing when there is none."""
        ...

    def exists(self, allocation: AllocationId) -> bool:
        """Whether there is a whole slot of that name."""
        ...

    def all(self) -> list[AllocationId]:
        """All whole slots."""
        ...

    def sweep(self) -> None:
        """Remove what crashes have left half made or half removed."""
        ...


def choose_slots(root: Path, *, membership: str, names: SlotNames | None = None, mounted: bool = False) -> Slots:
    """Return the strongest form that this process may have: memory for a pool that knows its members from the kernel.

    Args:
        names: what the slots are called.
        mounted: programs reach their slots by mounts of a container runtime only, so no other user may pass ``root``.
    """
    mode = 0o711 if os.geteuid() == 0 and not mounted else 0o700
    if membership == "kernel":
        in_memory = TmpfsSlots(root, mode=mode, names=names)
        if in_memory.works():
            return in_memory
    return FileSlots(root, mode=mode, names=names)
