"""Names inside the pool's ``alloc`` directory: what a slot may be called, and what its files are called."""

from __future__ import annotations

import re

LIMITS_FILE = "limits"
USAGE_FILE = "usage"
LEASE_FILE = "lease"

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def is_slot_name(text: str) -> bool:
    """Whether this can be the name of an allocation's slot or group: it leads nowhere else."""
    return _NAME.fullmatch(text) is not None
