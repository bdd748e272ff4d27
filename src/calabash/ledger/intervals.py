"""What was held and measured, as columns of integers: a million intervals are a few arrays.

Times are microseconds since 1970. A quantity is a product of integers (percent of a device x microseconds), so sums are exact
whatever their order; where an interval is cut, its parts have exactly what the whole had.
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
    """One slice of one device between two moments.

    Args:
        busy_us: GPU time that was measured in the slice.
        idle_us: time without GPU time, at most the length of the interval. The ledger counts it with the slice's share of the
            device, as it counts the time that the slice is held.
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
    """What an invoice tells apart."""

    project: str
    model: str
    mode: str
    preemptible: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Usage:
    """Intervals of one tenant. All columns have one entry per interval, ``key`` the index of its key in ``keys``.

    ``item`` is a number that the caller gives each interval, by which an invoice can be itemised; parts of an interval keep it.
    All intervals of an item have the same key.
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
            raise CalabashError("a usage interval ends before it begins", hint="the usage table was changed by hand")

    @classmethod
    def of(cls, intervals: Iterable[UsageInterval]) -> Usage:
        """Rows to columns."""
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
        """From an array of shape (intervals, 7): key, from, to, share, memory, busy, idle. ``items`` None: item 0 for all."""
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
        """The parts that lie in the period."""
        cut = self.cut(np.array([period.from_us, period.to_us], dtype=np.int64))
        inside = (cut.from_us >= period.from_us) & (cut.to_us <= period.to_us) & (cut.from_us < period.to_us)
        return cut.chosen(np.flatnonzero(inside))

    def chosen(self, rows: npt.NDArray[np.intp]) -> Usage:
        """Those intervals."""
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

    def cut(self, edges: Column) -> Usage:
        """No interval has one of these instants inside any more; what was measured is cut by time."""
        first = np.searchsorted(edges, self.from_us, side="right")
        parts = np.maximum(np.searchsorted(edges, self.to_us, side="left") - first, 0) + 1
        if len(self) == 0 or int(parts.max()) == 1:
            return self
        row = np.repeat(np.arange(len(self)), parts)
        place = np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
        at = first[row] + place
        begin = np.where(place == 0, self.from_us[row], edges[np.maximum(at - 1, 0)])
        end = np.where(place == parts[row] - 1, self.to_us[row], edges[np.minimum(at, len(edges) - 1)])
        several = np.flatnonzero(parts[row] > 1)
        whole = self.chosen(row)
        busy, idle = whole.busy_us.copy(), whole.idle_us.copy()
        for column in (busy, idle):
            column[several] = _by_time(column[several], whole.chosen(several), begin[several], end[several])
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
    """The sum of each group, also where it is larger than 64 bits."""
    high, low = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    np.add.at(high, groups, values >> _LOW_BITS)
    np.add.at(low, groups, values & ((1 << _LOW_BITS) - 1))
    return [(h << _LOW_BITS) + x for h, x in zip(high.tolist(), low.tolist(), strict=True)]


def _by_time(measured: Column, whole: Usage, begin: Column, end: Column) -> Column:
    """The part of each that belongs to begin..end of its whole; parts add up to it, because each is a difference of two
    floors."""
    amount, origin, length = measured.astype(object), whole.from_us, whole.length_us.astype(object)
    until, since = amount * (end - origin) // length, amount * (begin - origin) // length
    found: Column = (until - since).astype(np.int64)
    return found
