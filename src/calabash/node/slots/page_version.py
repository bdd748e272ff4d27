"""Check of the version of a slot's pages, before a pool or an agent that was started changes anything."""

from __future__ import annotations

import struct
from pathlib import Path

from calabash.model.versions import SLOT_PAGES
from calabash.node.slots.layout import LIMITS_MAGIC
from calabash.node.slots.names import LIMITS_FILE

_VERSION_HEAD = struct.Struct("<QI")  # magic and version, the first fields of LimitsStruct


def require_supported_slot(directory: Path) -> None:
    """Raise VERSION_MISMATCH if the limits page of a slot has a version that this program does not support.

    Reads only magic and version, whose places are the same in all versions. Other faults of the slot are not reported.
    """
    try:
        with open(directory / LIMITS_FILE, "rb", buffering=0) as source:
            magic, version = _VERSION_HEAD.unpack(source.read(_VERSION_HEAD.size))
    except (OSError, struct.error):
        return
    if magic == LIMITS_MAGIC:
        SLOT_PAGES.require(version, f"slot {directory}")
