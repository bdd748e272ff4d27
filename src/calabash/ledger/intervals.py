"""Usage intervals of a tenant, as columns of integers in NumPy arrays, so that millions of them are rated fast.

Times are microseconds since 1970. Quantities are products of integers (percent of a device x microseconds), so sums are exact
in any order. If an interval is split, the quantities of its pieces add up exactly to those of the interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calabash.ledger.calendar import Period
from calabash.model.errors import CalabashError

Column = npt.NDArray[np.int64]
_LOW_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageInterval:
    """Use of one slice of one device between two times.

    Args:
        share_percent: compute share of the slice.
        memory_mib: device memory of the slice.
        from_us, to_us: begin and end of the use, in microseconds since 1970.
        busy_us: measured GPU time of the slice in microseconds.
        idle_us: time without GPU work, in microseconds, at most the length of the interval. Rating multiplies it by the
            share of the slice.
    """

    project: str = ""
    user: str = ""
    device: str = ""
    model: str = ""
    mode: str = ""
    preemptible: bool = False
    from_us: int
    to_us: int
    share_percent: int
    memory_mib: int = 0
    busy_us: int = 0
    idle_us: int = 0


@dataclass(frozen=True, slots=True, order=True)
class LineKey:
    """Attributes of usage by which an invoice has separate lines: usage with equal keys is summed in one line."""

    project: str
    model: str
    mode: str
    preemptible: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Usage:
    """Usage intervals of one tenant as columns with one entry per interval.

    Args:
        keys: the different keys of the intervals.
        key: index of the interval's key in ``keys``.
        item: number that the caller assigns to each interval, for example one number per allocation. An invoice can be
            itemised by it. Pieces of a split interval keep it. All intervals of an item have the same key.
    """

    keys: tuple[LineKey, ...]
    key: Column
    from_us: Column
    to_us: Column
    share_percent: Column
    memory_mib: Column
    busy_us: Column
    idle_us: Column
    item: Column

    def __post_init__(self) -> None:
        if bool((self.to_us < self.from_us).any()):
            raise CalabashError(
                "a usage interval ends before it begins", hint="check if the usage table was changed by hand"
            )

    @classmethod
    def from_intervals(cls, intervals: Iterable[UsageInterval]) -> Usage:
        """Return the columns of the intervals, all with item 0."""
        keys: dict[LineKey, int] = {}
        rows = [
            (
                keys.setdefault(LineKey(i.project, i.model, i.mode, i.preemptible), len(keys)),
                i.from_us,
                i.to_us,
                i.share_percent,
                i.memory_mib,
                i.busy_us,
                i.idle_us,
            )
            for i in intervals
        ]
        return cls.of_columns(tuple(keys), np.array(rows, dtype=np.int64).reshape(len(rows), 7))

    @classmethod
    def of_columns(cls, keys: Sequence[LineKey], rows: Column, items: Column | None = None) -> Usage:
        """Return the usage that is given as an array with one row per interval.

        Args:
            keys: keys to which the first column refers.
            rows: shape (intervals, 7): key index, from_us, to_us, share_percent, memory_mib, busy_us, idle_us.
            items: item number of each interval; None: 0 for all.
        """
        key, from_us, to_us, share, memory, busy, idle = np.ascontiguousarray(rows.T)
        return cls(
            keys=tuple(keys),
            key=key,
            from_us=from_us,
            to_us=to_us,
            share_percent=share,
            memory_mib=memory,
            busy_us=busy,
            idle_us=idle,
            item=np.zeros(len(rows), dtype=np.int64) if items is None else items,
        )

    def __len__(self) -> int:
        return len(self.key)

    @property
    def length_us(self) -> Column:
        return self.to_us - self.from_us

    def within(self, period: Period) -> Usage:
        """Return the intervals that are in the period. Intervals that reach beyond it are cut at its begin and end."""
        pieces = self.split(np.array([period.from_us, period.to_us], dtype=np.int64))
        inside = (pieces.from_us >= period.from_us) & (pieces.to_us <= period.to_us) & (pieces.from_us < period.to_us)
        return pieces.select(np.flatnonzero(inside))

    def select(self, rows: npt.NDArray[np.intp]) -> Usage:
        """Return the intervals at these indices."""
        return Usage(
            keys=self.keys,
            key=self.key[rows],
            from_us=self.from_us[rows],
            to_us=self.to_us[rows],
            share_percent=self.share_percent[rows],
            memory_mib=self.memory_mib[rows],
            busy_us=self.busy_us[rows],
            idle_us=self.idle_us[rows],
            item=self.item[rows],
        )

    def split(self, edges: Column) -> Usage:
        """Split the intervals at the given times. Measured quantities are divided in proportion to time.

        Args:
            edges: times in ascending order.
        """
        first = np.searchsorted(edges, self.from_us, side="right")
        pieces = np.maximum(np.searchsorted(edges, self.to_us, side="left") - first, 0) + 1
        if len(self) == 0 or int(pieces.max()) == 1:
            return self
        row = np.repeat(np.arange(len(self)), pieces)
        number = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        at = first[row] + number
        begin = np.where(number == 0, self.from_us[row], edges[np.maximum(at - 1, 0)])
        end = np.where(number == pieces[row] - 1, self.to_us[row], edges[np.minimum(at, len(edges) - 1)])
        several = np.flatnonzero(pieces[row] > 1)
        whole = self.select(row)
        busy, idle = whole.busy_us.copy(), whole.idle_us.copy()
        for column in (busy, idle):
            column[several] = _divide_by_time(column[several], whole.select(several), begin[several], end[several])
        return Usage(
            keys=self.keys,
            key=whole.key,
            from_us=begin,
            to_us=end,
            share_percent=whole.share_percent,
            memory_mib=whole.memory_mib,
            busy_us=busy,
            idle_us=idle,
            item=whole.item,
        )


def exact_sums(values: Column, groups: npt.NDArray[np.intp], count: int) -> list[int]:
    """Return the sum of each group as Python integers, which may exceed 64 bits.

    Args:
        groups: group number of each value.
        count: number of groups.
    """
    high, low = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    np.add.at(high, groups, values >> _LOW_BITS)
    np.add.at(low, groups, values & ((1 << _LOW_BITS) - 1))
    return [(h << _LOW_BITS) + x for h, x in zip(high.tolist(), low.tolist(), strict=True)]


def _divide_by_time(measured: Column, whole: Usage, begin: Column, end: Column) -> Column:
    """Divide measured quantities of whole intervals among their pieces, in proportion to time.

    Each result is a difference of two rounded values, so that the results of all pieces of an interval add up exactly.

    Args:
        measured: for each piece, the quantity of the whole interval.
        whole: for each piece, the whole interval.
        begin, end: begin and end of each piece.
    """
    amount, origin, length = measured.astype(object), whole.from_us, whole.length_us.astype(object)
    until, since = amount * (end - origin) // length, amount * (begin - origin) // length
    found: Column = (until - since).astype(np.int64)
    return found
