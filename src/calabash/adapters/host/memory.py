"""Physical memory of this machine."""

from __future__ import annotations

import os

from calabash.model.units import MIB


def memory_mib() -> int:
    """Return the size of the physical memory in MiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB
