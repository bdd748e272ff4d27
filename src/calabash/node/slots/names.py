"""Names inside the pool's ``alloc`` directory: of the files of a slot, and of the slots themselves.

Every local user reads the names of mounts, control groups, network namespaces and sockets. So the slot of an
allocation, its control group, and what else exists for it under a name are called by a random name, which the journal
keeps as a part of the slot's path.
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
    """Return True if this can be the name of an allocation's slot or group: a single plain path component."""
    return _NAME.fullmatch(text) is not None


class SlotNames:
    """The names of the slots of one pool. Methods may be called from any thread.

    A name that is not known stands for itself: so what the journal has lost can still be found and removed.
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
        """Take over the name that an earlier pool gave. Ignore one that is no plain name."""
        if is_slot_name(name):
            self._allocations[name] = allocation
            self._names[allocation] = name

    def retire(self, allocation: AllocationId) -> None:
        """Note that an allocation is no longer held; its name is known a while longer, for what is still being removed."""
        self._retired[allocation] = None
        if len(self._retired) > _RETIRED_MAX:
            oldest = next(iter(self._retired))
            del self._retired[oldest]
            self._allocations.pop(self._names.pop(oldest, ""), None)

    def name_of(self, allocation: AllocationId) -> str:
        """Return the name of what exists for an allocation."""
        return self._names.get(allocation, allocation)

    def allocation_of(self, name: str) -> AllocationId:
        """Return the allocation that has this name."""
        return self._allocations.get(name, AllocationId(name))
