"""The meters of everything that is held: what is cut, written, closed and taken up again, whichever thread does it."""

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
    """One meter for each allocation.

    Args:
        boot: the boot of this machine whose monotonic clock ``clock`` has.
        mark: the last round of the pool before this one.
        seen: what the end recorder has seen of an allocation while no pool ran.
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
        self._first_poll_ns: int | None = None  # when this pool looked at all allocations first
        self._lock = threading.RLock()  # whoever measures asks back whether it still may
        self._meters: dict[AllocationId, Meter] = {}
        self._totals = UsageTotals(0.0 if mark is None else mark.now_s)
        self._all_seen = True  # none that an earlier pool has granted is still to be seen living

    def now(self) -> Moment:
        """This moment, by both clocks."""
        return Moment(boot=self._boot, monotonic_ns=self._clock.monotonic_ns(), now_s=self._clock.now_s())

    def resume(self, record: AllocationRecord, so_far: UsageSoFar | None) -> Meter:
        """Go on where an earlier pool stopped writing."""
        meter = self._meters[record.id] = resume_meter(record, self.now(), so_far, self._mark)
        self._all_seen = False
        return meter

    def begin(self, record: AllocationRecord) -> None:
        """Meter an allocation that was granted just now."""
        with self._lock:
            self._meter_of(record)

    def note_living(self, lives: Callable[[AllocationId], bool] = lambda _: True) -> None:
        """What this pool sees living is metered on. The rest, which may be held until a driver says that its devices are free,
        has ended when it was last known to live; who comes back is seen at a later round. Costs nothing once all is clear."""
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
        """Between which moments the allocations have ended that are not closed and that nobody has seen, by their slots: what
        the next pool is to know if this one does not live to write their ends."""
        found = {}
        with self._lock:
            for meter in self._meters.values():
                if meter.unseen and meter.anchored:
                    low_ns, high_ns = self._bounds(meter)
                    # Never 0, which would mean that it was not looked at.
                    alive_ns, gone_ns = max(1, low_ns + meter.base_ns), max(1, high_ns + meter.base_ns)
                    found[PurePath(meter.record.slot).name] = LastSeen(alive_ns=alive_ns, gone_ns=gone_ns)
        return found

    def _bounds(self, meter: Meter) -> tuple[int, int]:
        now_ns = self._clock.monotonic_ns()
        return meter.bounds(self._seen(meter.record), now_ns if self._first_poll_ns is None else self._first_poll_ns)

    def open_records(self, records: Iterable[AllocationRecord]) -> list[AllocationRecord]:
        """Those that are metered on; what is closed and no longer held is forgotten."""
        held = {record.id: record for record in records}
        with self._lock:
            self._meters = {name: meter for name, meter in self._meters.items() if name in held or not meter.closed}
            return [record for record in held.values() if not self._meter_of(record).closed]

    def is_metered(self, record: AllocationRecord) -> bool:
        """Whether this very grant is metered and not closed."""
        with self._lock:
            meter = self._known(record)
            return meter is not None and not meter.closed

    def preview(self, records: Iterable[AllocationRecord], measure: Measure) -> list[UsageRecord]:
        """Return what the store may not have of these allocations: the unwritten records, and those of the open intervals as
        if they ended now. An allocation that is not metered, because it is still being made or has ended, has none."""
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
        """Return the records to be written: new intervals up to now, or the last one where the store may not have it.

        Args:
            begin: begin to meter the allocations that are not metered. Only the thread that also forgets meters
                (``going_on``) may do so: to any other an allocation that has just ended looks like a new one.
        """
        due: dict[AllocationId, tuple[UsageRecord, ...]] = {}
        for record in records:
            with self._lock:
                meter = self._meter_of(record) if begin else self._known(record)
                # The end of an allocation that nobody has seen is settled once, by ``close``.
                if meter is not None and not meter.closed and not meter.unseen:
                    offset_ns = meter.end_ns(self._clock.monotonic_ns())
                    meter.unwritten = meter.unwritten or self._cut(meter, offset_ns, measure(record))
                    due[record.id] = meter.unwritten
        return due

    def totals(self, records: Iterable[AllocationRecord], measure: Measure) -> Mapping[Key, GpuTime]:
        """Return the GPU time of tenants and projects up to now. No interval is cut or begun meanwhile, else it would count
        twice or not at all."""
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
        """The store has them."""
        with self._lock:
            for name, usage in due.items():
                meter = self._meters.get(name)
                if meter is not None and meter.unwritten is usage:
                    meter.unwritten = ()

    def close(self, record: AllocationRecord, measure: Measure) -> Sequence[UsageRecord]:
        """The last records of an allocation; the same ones when it is asked again."""
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
        """The meter of this very grant; None if there is none yet, or none any more."""
        meter = self._meters.get(record.id)
        return meter if meter is not None and meter.record.granted_ns == record.granted_ns else None

    def _meter_of(self, record: AllocationRecord) -> Meter:
        meter = self._meters.get(record.id)
        again = meter is not None and meter.closed and meter.record.granted_ns != record.granted_ns
        if meter is None or again:  # a container that is made anew is granted under the same name
            meter = self._meters[record.id] = open_meter(record, self.now())
        return meter
