"""Nominal memory size of a device: the size under which its model is sold.

A driver reports less memory than the nominal size, because firmware and error correction use some of it: 39.4 GiB for an
A100-40GB, 79.6 GiB for an H100-80GB, 15 GiB for a T4 with 16 GB. Filters and selectors compare with the nominal size.
Placements use the reported size.
"""

from __future__ import annotations

import re
from functools import lru_cache

MISSING_MAX = 0.08  # the largest fraction of the nominal size that a driver may leave out of the reported size
_NAMED = re.compile(r"(?<![0-9.])([0-9]{1,4}) ?GB\b", re.IGNORECASE)
# Sizes in GiB that cards are sold with, for models whose names contain no size.
_SIZES_GIB = (
    1, 2, 3, 4, 5, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 72, 80, 94, 96, 128, 141, 144, 180, 186, 192, 256, 288,
)  # fmt: skip


@lru_cache(maxsize=4096)
def nominal_memory_mib(memory_mib: int, model: str = "") -> int:
    """Return the nominal memory size, in MiB, of a device whose driver reports ``memory_mib``.

    The result is the size in the name of the model if the reported size is at most 8 % below it. Otherwise it is the smallest
    size on the market that the reported size is at most 8 % below. If there is none, it is the reported size.
    """
    named = [int(size) for size in _NAMED.findall(model)]
    for size in (*named, *_SIZES_GIB):
        if memory_mib <= 1024 * size and memory_mib >= 1024 * size * (1 - MISSING_MAX):
            return 1024 * size
    return memory_mib
