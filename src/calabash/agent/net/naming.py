"""What the parts of a port are called on a host, so that whoever comes later knows whose they are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from calabash.agent.slot_names import is_slot_name
from calabash.model.request import AllocationId

RESOLVER_FILE = "resolv.conf"
DOOR_FILE = "door"


@dataclass(frozen=True, slots=True)
class HostNames:
    """Names of one pool; ``pool`` is unlike any other pool's of this machine."""

    pool: str

    @property
    def prefix(self) -> str:
        """Of the namespaces of all its allocations."""
        return f"{self.pool}."

    def namespace(self, allocation: AllocationId) -> str:
        return self.prefix + allocation

    def owner(self, allocation: AllocationId) -> str:
        """What the switch keeps beside a port."""
        return f"{self.pool}/{allocation}"

    def outer(self, allocation: AllocationId, port: str) -> str:
        """The end of a pair that is the switch's: at most 15 characters, which is all the kernel takes."""
        digest = hashlib.sha256(f"{self.pool}/{allocation}/{port}".encode()).hexdigest()
        return f"cb{digest[:12]}"

    def of_namespace(self, name: str) -> AllocationId | None:
        """Whose a namespace is; None: not this pool's."""
        return _allocation(name.removeprefix(self.prefix)) if name.startswith(self.prefix) else None

    def of_owner(self, owner: str) -> AllocationId | None:
        pool, _, allocation = owner.partition("/")
        return _allocation(allocation) if pool == self.pool else None


def inner(index: int) -> str:
    """The end of a pair that its program sees."""
    return f"eth{index}"


def _allocation(text: str) -> AllocationId | None:
    return AllocationId(text) if is_slot_name(text) else None
