"""The meters of everything that is held: what is cut, written, closed and taken up again, whichever thread does it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from calabash.agent.meter import Measured, Meter, Moment, open_meter, resume_meter
from calabash.model.allocation import AllocationRecord, UsageRecord, UsageSoFar
from calabash.model.request import AllocationId
from calabash.seams.clock import Clock

Measure = Callable[[AllocationRecord], Sequence[Measured]]


class Meters:
    """One meter for each allocation.

    Args:
        boot: the boot of this machine whose monotonic clock ``clock`` has.
        mark: the last round of the pool before this one.
    """

    def __init__(self, clock: Clock, *, boot: str = "", mark: Moment | None = None) -> None:
        self._clock = clock
        self._boot = boot
        self._mark = mark
        self._lock = threading.RLock()  # whoever measures asks back whether it still may
        self._meters: dict[AllocationId, Meter] = {}

    def now(self) -> Moment:
        """This moment, by both clocks."""
        return Moment(boot=self._boot, monotonic_ns=self._clock.monotonic_ns(), now_s=self._clock.now_s())

    def resume(self, record: AllocationRecord, so_far: UsageSoFar | None) -> Meter:
        """Go on where an earlier pool stopped writing."""
        meter = self._meters[record.id] = resume_meter(record, self.now(), so_far, self._mark)
        return meter

    def begin(self, record: AllocationRecord) -> None:
        """Meter an allocation that was granted just now."""
        with self._lock:
            self._of(record)

    def settled(self, lives: Callable[[AllocationId], bool] = lambda _: True) -> None:
        """What this pool sees living is metered on. The rest, which may be held until a driver says that its devices are free,
        has ended when it was last known to live; who comes back is seen at a later round. Costs nothing once all is clear."""
        with self._lock:
            unseen = [(name, meter) for name, meter in self._meters.items() if meter.unseen]
        for name, meter in unseen:
            if lives(name):
                meter.lived_until_ns = None

    def going_on(self, records: Iterable[AllocationRecord]) -> list[AllocationRecord]:
        """Those that are metered on; what is closed and no longer held is forgotten."""
        held = {record.id: record for record in records}
        with self._lock:
            self._meters = {name: meter for name, meter in self._meters.items() if name in held or not meter.closed}
            return [record for record in held.values() if not self._of(record).closed]

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
                    found += meter.preview(meter.end_ns(self._clock.monotonic_ns()), measure(record))
        return found

    def cut(
        self, records: Iterable[AllocationRecord], measure: Measure, *, begin: bool = True
    ) -> Mapping[AllocationId, tuple[UsageRecord, ...]]:
        """What is to be written: new intervals up to now, or the last one where the store may not have it.

        Args:
            begin: begin to meter the allocations that are not metered. Only the thread that also forgets meters
                (``going_on``) may do so: to any other an allocation that has just ended looks like a new one.
        """
        due: dict[AllocationId, tuple[UsageRecord, ...]] = {}
        for record in records:
            with self._lock:
                meter = self._of(record) if begin else self._known(record)
                if meter is not None and not meter.closed:
                    offset_ns = meter.end_ns(self._clock.monotonic_ns())
                    meter.unwritten = meter.unwritten or meter.cut(offset_ns, measure(record))
                    due[record.id] = meter.unwritten
        return due

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
            meter = self._of(record)
            if not meter.closed:
                until_ns = meter.end_ns(self._clock.monotonic_ns())
                meter.unwritten = (*meter.unwritten, *meter.cut(until_ns, measure(record)))
                meter.closed = True
            return meter.unwritten

    def _known(self, record: AllocationRecord) -> Meter | None:
        """The meter of this very grant; None if there is none yet, or none any more."""
        meter = self._meters.get(record.id)
        return meter if meter is not None and meter.record.granted_ns == record.granted_ns else None

    def _of(self, record: AllocationRecord) -> Meter:
        meter = self._meters.get(record.id)
        again = meter is not None and meter.closed and meter.record.granted_ns != record.granted_ns
        if meter is None or again:  # a container that is made anew is granted under the same name
            meter = self._meters[record.id] = open_meter(record, self.now())
        return meter
