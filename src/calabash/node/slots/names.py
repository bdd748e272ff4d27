"""File names in a slot, and random names of slots.

Every local user can read the names of mounts, control groups, network namespaces and sockets, and an allocation ID in
them would disclose a tenant's allocation. So the slot of an allocation, its control group, and everything else that is
named after it have a random name. The journal contains this name as the last component of the slot's path.
"""

from __future__ import annotations

import base64
import re
import secrets

from calabash.model.request import AllocationId

LIMITS_FILE = "limits"
USAGE_FILE = "usage"
LEASE_FILE = "lease"
WORKERS_FILE = "workers.json"  # in the home: the processes that serve brokered allocations

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_RANDOM_BYTES = 15
_RETIRED_MAX = 4096


def is_slot_name(text: str) -> bool:
    """Return True if a text can be the name of a slot or group: a single plain path component."""
    return _NAME.fullmatch(text) is not None


class SlotNames:
    """Names of the slots of one pool. Methods may be called from any thread.

    An unknown slot name is regarded as the ID of its allocation, so that a slot that the journal has lost can be found
    and removed.
    """

    def __init__(self) -> None:
        self._names: dict[AllocationId, str] = {}
        self._allocations: dict[str, AllocationId] = {}
        self._retired: dict[AllocationId, None] = {}  # in order

    def assign(self, allocation: AllocationId) -> str:
        """Return the name of an allocation that is about to be held: a new random one if it has none."""
        name = self._names.get(allocation)
        self._retired.pop(allocation, None)
        if name is None:
            name = "s" + base64.b32encode(secrets.token_bytes(_RANDOM_BYTES)).decode().lower()
            self.adopt(allocation, name)
        return name

    def adopt(self, allocation: AllocationId, name: str) -> None:
        """Register the name that an earlier pool gave to an allocation. Ignored if it is not a plain name."""
        if is_slot_name(name):
            self._allocations[name] = allocation
            self._names[allocation] = name

    def retire(self, allocation: AllocationId) -> None:
        """Note that an allocation is not held any more. Its name stays known while its resources are being removed."""
        self._retired[allocation] = None
        if len(self._retired) > _RETIRED_MAX:
            oldest = next(iter(self._retired))
            del self._retired[oldest]
            self._allocations.pop(self._names.pop(oldest, ""), None)

    def name_of(self, allocation: AllocationId) -> str:
        """Return the name of an allocation; its identifier if it has none."""
        return self._names.get(allocation, allocation)

    def allocation_of(self, name: str) -> AllocationId:
        """Return the allocation with this name; the name itself if it is unknown."""
        return self._allocations.get(name, AllocationId(name))
