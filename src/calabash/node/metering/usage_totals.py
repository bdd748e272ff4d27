"""Counters of the GPU time of tenants and projects, from the same records that billing reads.

The counters begin at 0 with each pool and count from the last round of the previous pool, so that time in which no pool
ran is counted once. A counter never decreases, even if usage is written later than it was measured, or is measured
lower than it was estimated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from calabash.model.allocation import UsageRecord

KEYS_MAX = 8192  # tenants and projects; the oldest beyond it is dropped and begins again at 0

Key = tuple[str] | tuple[str, str]  # a tenant as a whole, or one of its projects


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTime:
    """GPU time in seconds of a whole device: allocated, used, and allocated without any use."""

    allocated_s: float = 0.0
    used_s: float = 0.0
    idle_s: float = 0.0

    def plus(self, other: GpuTime) -> GpuTime:
        return GpuTime(
            allocated_s=self.allocated_s + other.allocated_s,
            used_s=self.used_s + other.used_s,
            idle_s=self.idle_s + other.idle_s,
        )

    def at_least(self, other: GpuTime) -> GpuTime:
        """Return for each of the three times the larger one of these and of ``other``."""
        return GpuTime(
            allocated_s=max(self.allocated_s, other.allocated_s),
            used_s=max(self.used_s, other.used_s),
            idle_s=max(self.idle_s, other.idle_s),
        )


class UsageTotals:
    """Counters of the GPU time of tenants and projects. Not thread-safe.

    Args:
        since_s: calendar time from which usage counts; earlier usage was counted by an earlier pool.
    """

    def __init__(self, since_s: float = 0.0) -> None:
        self._since_s = since_s
        self._ended: dict[Key, GpuTime] = {}  # sums of intervals that have ended
        self._told: dict[Key, GpuTime] = {}

    def add(self, records: Iterable[UsageRecord]) -> None:
        """Count intervals that have ended; each must be added once."""
        self._count(self._ended, records)
        for found in (self._ended, self._told):
            while len(found) > KEYS_MAX:
                oldest = next(iter(found))
                self._ended.pop(oldest, None)
                self._told.pop(oldest, None)

    def with_open(self, records: Iterable[UsageRecord]) -> Mapping[Key, GpuTime]:
        """Return the counters by tenant and by project as if the open intervals of ``records`` ended now.

        These intervals are not added to the counters; ``add`` does that when they have ended.
        """
        found = dict(self._ended)
        self._count(found, records)
        for key, time in found.items():
            before = self._told.get(key)
            self._told[key] = time if before is None else time.at_least(before)
        return dict(self._told)

    def _count(self, found: dict[Key, GpuTime], records: Iterable[UsageRecord]) -> None:
        for record in records:
            length_s, within_s = record.to_s - record.from_s, record.to_s - max(record.from_s, self._since_s)
            if within_s <= 0:
                continue
            part = within_s / length_s
            time = GpuTime(
                allocated_s=record.allocated_gpu_s * part,
                used_s=record.used_gpu_s * part,
                idle_s=min(record.idle_s, length_s) * record.core_percent / 100 * part,
            )
            keys: list[Key] = [(record.tenant,)]
            if record.project:
                keys.append((record.tenant, record.project))
            for key in keys:
                found[key] = found[key].plus(time) if key in found else time
