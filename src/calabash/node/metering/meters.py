"""Meters of all held allocations: cutting, writing, closing and resuming intervals from several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath

from calabash.adapters.clock import Clock
from calabash.model.allocation import AllocationRecord, UsageRecord, UsageSoFar
from calabash.model.request import AllocationId
from calabash.node.metering.end_file import LastSeen
from calabash.node.metering.interval import Measured, Meter, Moment, estimate, open_meter, resume_meter
from calabash.node.metering.usage_totals import GpuTime, Key, UsageTotals

Measure = Callable[[AllocationRecord], Sequence[Measured]]


class Meters:
    """One meter for each allocation. Methods may be called from any thread.

    Args:
        boot: ID of the present boot of this machine, in which the monotonic time of ``clock`` is valid.
        mark: time of the last round of the previous pool; None: unknown.
        seen: returns the times that the end recorder wrote for an allocation while no pool ran; None: none.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        boot: str = "",
        mark: Moment | None = None,
        seen: Callable[[AllocationRecord], LastSeen | None] = lambda _: None,
    ) -> None:
        self._clock = clock
        self._boot = boot
        self._mark = mark
        self._seen = seen
        self._first_poll_ns: int | None = None  # when this pool first polled all allocations
        self._lock = threading.RLock()  # reentrant: measuring calls is_metered
        self._meters: dict[AllocationId, Meter] = {}
        self._totals = UsageTotals(0.0 if mark is None else mark.now_s)
        self._all_seen = True  # every allocation of an earlier pool was seen alive or is closed

    def now(self) -> Moment:
        """Return the present moment by both clocks."""
        return Moment(boot=self._boot, monotonic_ns=self._clock.monotonic_ns(), now_s=self._clock.now_s())

    def resume(self, record: AllocationRecord, so_far: UsageSoFar | None) -> Meter:
        """Create the meter of an allocation that an earlier pool granted; ``so_far``: usage that is written already."""
        meter = self._meters[record.id] = resume_meter(record, self.now(), so_far, self._mark)
        self._all_seen = False
        return meter

    def begin(self, record: AllocationRecord) -> None:
        """Begin to meter an allocation that was just granted."""
        with self._lock:
            self._meter_of(record)

    def note_living(self, lives: Callable[[AllocationId], bool] = lambda _: True) -> None:
        """Note which allocations of an earlier pool are alive according to ``lives``. Metering of these continues.

        The others are regarded as ended at the moment at which they were last known to live, even if they are still
        held until a driver reports their devices as free. If a later call finds one alive, its metering continues. Does
        nothing after all have been seen alive or are closed.
        """
        if self._all_seen and self._first_poll_ns is not None:
            return
        with self._lock:
            unseen = [(name, meter) for name, meter in self._meters.items() if meter.unseen]
            self._all_seen = not unseen
        for name, meter in unseen:
            if lives(name):
                meter.lived_until_ns = None
        if self._first_poll_ns is None:
            self._first_poll_ns = self._clock.monotonic_ns()

    def ended(self) -> dict[str, LastSeen]:
        """Return by slot name the earliest and the latest end of each allocation that this pool never saw alive.

        The next pool needs them if this one ends before it has written the ends.
        """
        found = {}
        with self._lock:
            for meter in self._meters.values():
                if meter.unseen and meter.anchored:
                    low_ns, high_ns = self._bounds(meter)
                    # Never 0, which would mean that it was not polled.
                    alive_ns, gone_ns = max(1, low_ns + meter.base_ns), max(1, high_ns + meter.base_ns)
                    found[PurePath(meter.record.slot).name] = LastSeen(alive_ns=alive_ns, gone_ns=gone_ns)
        return found

    def _bounds(self, meter: Meter) -> tuple[int, int]:
        now_ns = self._clock.monotonic_ns()
        return meter.bounds(self._seen(meter.record), now_ns if self._first_poll_ns is None else self._first_poll_ns)

    def open_records(self, records: Iterable[AllocationRecord]) -> list[AllocationRecord]:
        """Return the allocations whose metering continues; drop the meters of closed allocations that are not held."""
        held = {record.id: record for record in records}
        with self._lock:
            self._meters = {name: meter for name, meter in self._meters.items() if name in held or not meter.closed}
            return [record for record in held.values() if not self._meter_of(record).closed]

    def is_metered(self, record: AllocationRecord) -> bool:
        """Return True if this grant of the allocation is metered and not closed."""
        with self._lock:
            meter = self._known(record)
            return meter is not None and not meter.closed

    def preview(self, records: Iterable[AllocationRecord], measure: Measure) -> list[UsageRecord]:
        """Return usage that the store may not have: unwritten records, and open intervals as if they ended now.

        There is no usage of an allocation that is not metered, because it is being created or has ended.
        """
        found: list[UsageRecord] = []
        for record in records:
            with self._lock:
                meter = self._known(record)
                if meter is not None:
                    found += meter.unwritten
                if meter is not None and not meter.closed:
                    found += meter.preview(self._open_until_ns(meter), measure(record))
        return found

    def cut(
        self, records: Iterable[AllocationRecord], measure: Measure, *, begin: bool = True
    ) -> Mapping[AllocationId, tuple[UsageRecord, ...]]:
        """End the open intervals and return the records to write.

        If the store may not have the last interval of an allocation, the records of that interval are returned instead.

        Args:
            measure: returns the use of each slice of an allocation.
            begin: begin to meter allocations that are not metered. Only the thread that also drops meters
                (``open_records``) may do so: to any other thread an allocation that has just ended looks like a new
                one.
        """
        due: dict[AllocationId, tuple[UsageRecord, ...]] = {}
        for record in records:
            with self._lock:
                meter = self._meter_of(record) if begin else self._known(record)
                # The end of an allocation that was not seen alive is settled once, by ``close``.
                if meter is not None and not meter.closed and not meter.unseen:
                    offset_ns = meter.end_ns(self._clock.monotonic_ns())
                    meter.unwritten = meter.unwritten or self._cut(meter, offset_ns, measure(record))
                    due[record.id] = meter.unwritten
        return due

    def totals(self, records: Iterable[AllocationRecord], measure: Measure) -> Mapping[Key, GpuTime]:
        """Return the GPU time of tenants and projects up to now.

        Holds the lock throughout, so that no interval is counted twice or missed.
        """
        with self._lock:
            found: list[UsageRecord] = []
            for record in records:
                meter = self._known(record)
                if meter is not None and not meter.closed:
                    found += meter.preview(self._open_until_ns(meter), measure(record))
            return self._totals.with_open(found)

    def _open_until_ns(self, meter: Meter) -> int:
        """Return the offset up to which an allocation is metered if its open interval ends now."""
        return estimate(*self._bounds(meter))[0] if meter.unseen else meter.end_ns(self._clock.monotonic_ns())

    def _cut(self, meter: Meter, offset_ns: int, measured: Sequence[Measured]) -> tuple[UsageRecord, ...]:
        records = meter.cut(offset_ns, measured)
        self._totals.add(records)
        return records

    def written(self, due: Mapping[AllocationId, tuple[UsageRecord, ...]]) -> None:
        """Note that the store has these records."""
        with self._lock:
            for name, usage in due.items():
                meter = self._meters.get(name)
                if meter is not None and meter.unwritten is usage:
                    meter.unwritten = ()

    def close(self, record: AllocationRecord, measure: Measure) -> Sequence[UsageRecord]:
        """End the metering of an allocation and return its last records; the same ones if called again."""
        with self._lock:
            meter = self._meter_of(record)
            if not meter.closed:
                if meter.unseen:
                    meter.settle(*self._bounds(meter))
                until_ns = meter.end_ns(self._clock.monotonic_ns())
                meter.unwritten = (*meter.unwritten, *self._cut(meter, until_ns, measure(record)))
                meter.closed = True
            return meter.unwritten

    def _known(self, record: AllocationRecord) -> Meter | None:
        """Return the meter of this grant; None if there is none."""
        meter = self._meters.get(record.id)
        return meter if meter is not None and meter.record.granted_ns == record.granted_ns else None

    def _meter_of(self, record: AllocationRecord) -> Meter:
        meter = self._meters.get(record.id)
        again = meter is not None and meter.closed and meter.record.granted_ns != record.granted_ns
        if meter is None or again:  # a container that is created again is granted under the same name
            meter = self._meters[record.id] = open_meter(record, self.now())
        return meter
