"""Amounts of the three resources that queues count: devices, CPU and host memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

EPSILON = 1e-6  # tolerance with which amounts are compared, in units of the resource


class Amount(NamedTuple):
    """An amount of the three resources that queues count.

    ``gpu_milli`` is in thousandths of a device: a whole number or a multiple of ``2 ** -20``, so that sums are exact.
    """

    gpu_milli: float = 0
    cpu_milli: int = 0
    host_memory_mib: int = 0

    def within(self, bound: Sequence[float]) -> bool:
        """Return True if no resource with a positive amount exceeds the bound."""
        return all(mine <= most + EPSILON for mine, most in zip(self, bound, strict=True) if mine > 0)


def total(amounts: Iterable[Amount]) -> Amount:
    """Return the sum of the amounts."""
    gpu_milli: float = 0
    cpu_milli = host_memory_mib = 0
    for amount in amounts:
        gpu_milli += amount[0]
        cpu_milli += amount[1]
        host_memory_mib += amount[2]
    return Amount(gpu_milli, cpu_milli, host_memory_mib)


ZERO = Amount()
RESOURCES = len(ZERO)
