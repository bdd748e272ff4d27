"""Which part of what a tenant held was guaranteed to it, and which was borrowed.

Theory of operation. At every moment a tenant holds ``h`` of its devices, has a guarantee of ``g``, and what is beyond,
``max(0, h - g)``, is borrowed. All that it holds then is borrowed in the same ratio ``r = max(0, h - g) / h``, whoever of
its members has it. An interval of share ``p`` borrowed ``p * (R(to) - R(from))``, where ``R`` is the integral of ``r``.
``R`` is kept in whole numbers of 2^-40 microseconds, rounded down at the moments when ``h`` or the excess changes and
nowhere else, so it is one function of time however the intervals are cut and ordered, and differences of it add up exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calabash.ledger.intervals import Column, Usage

FRACTION_BITS = 40
_MILLI_OF_PERCENT = 10  # thousandths of a device


@dataclass(frozen=True, slots=True, kw_only=True)
class GuaranteeChange:
    """From that moment on a tenant is guaranteed so many thousandths of a device."""

    at_us: int
    guarantee_milli: int


def borrowed(usage: Usage, changes: Sequence[GuaranteeChange]) -> list[int]:
    """What each interval borrowed, in 2^-40 of a percent of a device for a microsecond. Before the first change nothing is
    guaranteed."""
    count = len(usage)
    if not count:
        return []
    ordered = sorted(changes, key=lambda change: change.at_us)
    times = np.array([change.at_us for change in ordered], dtype=np.int64)
    ends = np.concatenate([usage.from_us, usage.to_us, times])
    marks, place = np.unique(ends, return_inverse=True)
    step = np.zeros(len(marks), dtype=np.int64)
    np.add.at(step, place[:count], usage.share_percent)
    np.add.at(step, place[count : 2 * count], -usage.share_percent)
    guarantees = np.array([0, *(change.guarantee_milli for change in ordered)], dtype=np.int64)
    guaranteed = guarantees[np.searchsorted(times, marks, side="right")]
    lent = _integral(marks, np.cumsum(step) * _MILLI_OF_PERCENT, guaranteed)
    pairs = zip(usage.share_percent.tolist(), place[:count].tolist(), place[count : 2 * count].tolist(), strict=True)
    return [share * (lent[end] - lent[begin]) for share, begin, end in pairs]


def _integral(marks: Column, held: Column, guaranteed: Column) -> list[int]:
    """R at each mark."""
    found: list[int] = []
    so_far, since, over, whole = 0, 0, 0, 1
    for at, holds, sure in zip(marks.tolist(), held.tolist(), guaranteed.tolist(), strict=True):
        value = so_far + (((at - since) * over << FRACTION_BITS) // whole if over else 0)
        found.append(value)
        beyond = max(0, holds - sure)
        if beyond != over or (beyond and holds != whole):
            so_far, since, over, whole = value, at, beyond, holds or 1
    return found
