"""The nominal memory of a device: the size in the name of its model, by which people ask for it.

A driver reports less than that: an A100-40GB has 39.4 GiB, an H100-80GB 79.6 GiB, a T4 of 16 GB has 15 GiB, for firmware and
error correction keep a part. Filters and selectors compare with the nominal size; amounts that are promised are of the reported
size.
"""

from __future__ import annotations

import re
from functools import lru_cache

MISSING_MAX = 0.08  # the largest part of the nominal size that a driver may not report
_NAMED = re.compile(r"(?<![0-9.])([0-9]{1,4}) ?GB\b", re.IGNORECASE)
# Sizes in GiB that cards are sold with, for models whose names do not say theirs.
_SIZES_GIB = (
    1, 2, 3, 4, 5, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 72, 80, 94, 96, 128, 141, 144, 180, 186, 192, 256, 288,
)  # fmt: skip


@lru_cache(maxsize=4096)
def nominal_memory_mib(memory_mib: int, model: str = "") -> int:
    """Return the nominal size in MiB of a device that reports ``memory_mib``.

    It is the size in the name of the model, where the reported size is at most 8 % less; else the smallest size that cards are
    sold with of which the reported size is at most 8 % less; else the reported size.
    """
    named = [int(size) for size in _NAMED.findall(model)]
    for size in (*named, *_SIZES_GIB):
        if memory_mib <= 1024 * size and memory_mib >= 1024 * size * (1 - MISSING_MAX):
            return 1024 * size
    return memory_mib
