"""Names of namespaces, interfaces and switch ports, from which the next agent recognises their pool and allocation."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from calabash.model.request import AllocationId
from calabash.node.slots.names import SlotNames, is_slot_name

RESOLVER_FILE = "resolv.conf"
ENTRY_SOCKET_FILE = "door"


@dataclass(frozen=True, slots=True)
class HostNames:
    """Names of the network namespaces, interfaces and switch ports of one pool.

    All users of the host can read these names. They therefore contain the random name of the allocation's slot, not the
    ID of the allocation.

    ``pool``: name of the pool, unique on this machine.
    """

    pool: str
    slots: SlotNames = field(default_factory=SlotNames)

    @property
    def prefix(self) -> str:
        """Prefix of the names of all namespaces of the pool."""
        return f"{self.pool}."

    def namespace(self, allocation: AllocationId) -> str:
        return self.prefix + self.slots.name_of(allocation)

    def directory(self, allocation: AllocationId) -> str:
        """Return the name of the directory with the files that the allocation's program sees."""
        return self.slots.name_of(allocation)

    def of_directory(self, name: str) -> AllocationId:
        return self.slots.allocation_of(name)

    def owner(self, allocation: AllocationId) -> str:
        """Return the owner that the switch stores with a port."""
        return f"{self.pool}/{self.slots.name_of(allocation)}"

    def outer(self, allocation: AllocationId, port: str) -> str:
        """Return the name of the interface that is plugged into the switch, of at most 15 characters."""
        digest = hashlib.sha256(f"{self.owner(allocation)}/{port}".encode()).hexdigest()
        return f"cb{digest[:12]}"

    @staticmethod
    def namespace_of_owner(owner: str) -> str:
        """Return the name of the network namespace of the allocation that ``owner`` stands for.

        ``owner`` is the owner that the switch stores with a port; it may be of another pool.
        """
        return owner.replace("/", ".", 1)

    def of_namespace(self, name: str) -> AllocationId | None:
        """Return the allocation of a namespace; None if the namespace does not belong to this pool."""
        return self._allocation(name.removeprefix(self.prefix)) if name.startswith(self.prefix) else None

    def of_owner(self, owner: str) -> AllocationId | None:
        pool, _, allocation = owner.partition("/")
        return self._allocation(allocation) if pool == self.pool else None

    def _allocation(self, name: str) -> AllocationId | None:
        return self.slots.allocation_of(name) if is_slot_name(name) else None


def inner(index: int) -> str:
    """Return the name of the interface that the program sees."""
    return f"eth{index}"
