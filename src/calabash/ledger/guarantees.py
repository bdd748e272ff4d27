"""Division of a tenant's use into guaranteed and borrowed use.

Theory of operation. At every time a tenant holds ``h`` devices and has a guarantee of ``g`` devices; the excess
``max(0, h - g)`` is borrowed. All its slices are borrowed in the same ratio ``r = max(0, h - g) / h``, whichever member has
them. An interval with share ``p`` borrowed ``p * (R(to) - R(from))``, where ``R`` is the integral of ``r`` over time. ``R`` is
computed in whole numbers of 2^-40 microseconds. It is rounded down only at the times at which ``h`` or the excess changes.
Therefore ``R`` does not depend on the order of the intervals and the points at which they are split, and its differences add up
exactly.
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
    """Guarantee of a tenant from a time on, in thousandths of a device."""

    at_us: int
    guarantee_milli: int


def borrowed_quantities(usage: Usage, changes: Sequence[GuaranteeChange]) -> list[int]:
    """Return the borrowed quantity of each interval, in units of 2^-40 percent of a device for a microsecond.

    Args:
        usage: all intervals of the tenant.
        changes: history of the tenant's guarantee; before the first change nothing is guaranteed.
    """
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
    """Return the integral of the borrowed ratio up to each time in ``marks``: R of the module, in 2^-40 microseconds.

    Args:
        marks: times in microseconds, ascending.
        held, guaranteed: amounts held and guaranteed from each of these times to the next, in thousandths of a device.
    """
    values: list[int] = []
    so_far, since, excess, total = 0, 0, 0, 1
    for at, holds, guarantee in zip(marks.tolist(), held.tolist(), guaranteed.tolist(), strict=True):
        value = so_far + (((at - since) * excess << FRACTION_BITS) // total if excess else 0)
        values.append(value)
        next_excess = max(0, holds - guarantee)
        if next_excess != excess or (next_excess and holds != total):
            so_far, since, excess, total = value, at, next_excess, holds or 1
    return values
