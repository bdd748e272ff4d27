"""What the parts of a port are called on a host, so that whoever comes later knows whose they are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from calabash.model.request import AllocationId
from calabash.node.slots.names import SlotNames, is_slot_name

RESOLVER_FILE = "resolv.conf"
DOOR_FILE = "door"


@dataclass(frozen=True, slots=True)
class HostNames:
    """Names of one pool; ``pool`` is unlike any other pool's of this machine. Every user reads them, so an allocation goes
    by the name of its slot."""

    pool: str
    slots: SlotNames = field(default_factory=SlotNames)

    @property
    def prefix(self) -> str:
        """Of the namespaces of all its allocations."""
        return f"{self.pool}."

    def namespace(self, allocation: AllocationId) -> str:
        return self.prefix + self.slots.name_of(allocation)

    def directory(self, allocation: AllocationId) -> str:
        """The directory with the files that its program sees."""
        return self.slots.name_of(allocation)

    def of_directory(self, name: str) -> AllocationId:
        return self.slots.allocation_of(name)

    def owner(self, allocation: AllocationId) -> str:
        """What the switch keeps beside a port."""
        return f"{self.pool}/{self.slots.name_of(allocation)}"

    def outer(self, allocation: AllocationId, port: str) -> str:
        """The end of a pair that is the switch's: at most 15 characters, which is all the kernel takes."""
        digest = hashlib.sha256(f"{self.owner(allocation)}/{port}".encode()).hexdigest()
        return f"cb{digest[:12]}"

    @staticmethod
    def namespace_of_owner(owner: str) -> str:
        """Return the network namespace of the allocation, of any pool, that the switch names as the owner of a port."""
        return owner.replace("/", ".", 1)

    def of_namespace(self, name: str) -> AllocationId | None:
        """Whose a namespace is; None: not this pool's."""
        return self._allocation(name.removeprefix(self.prefix)) if name.startswith(self.prefix) else None

    def of_owner(self, owner: str) -> AllocationId | None:
        pool, _, allocation = owner.partition("/")
        return self._allocation(allocation) if pool == self.pool else None

    def _allocation(self, name: str) -> AllocationId | None:
        return self.slots.allocation_of(name) if is_slot_name(name) else None


def inner(index: int) -> str:
    """The end of a pair that its program sees."""
    return f"eth{index}"
