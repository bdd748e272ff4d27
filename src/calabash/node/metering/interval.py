"""Meter of one allocation: the time up to which its usage is recorded, and the next interval to record (pure).

Theory of operation. Every moment of an allocation is its *offset*: nanoseconds of the monotonic clock since it was
granted. An interval goes from the offset at which the last one ended to the present one, so intervals have no gaps and
no overlaps, and a change of the calendar clock has no effect: ``from_s`` and ``to_s`` are the calendar time of the
grant plus the offset. Records of an allocation are numbered from 0, slice by slice, interval by interval, and the store
accepts each number once. An interval that was ended (*cut*) is kept until the store has its records, and its end is not
changed any more. So a writer that does not know whether a write succeeded can write the same records again.

A pool that starts reads from the store how far its predecessor has written, and continues from there. An allocation
without a live member process at that time has ended in between: after the last moment at which it is known to have had
one, and before the first poll of this pool. The end recorder (``end_recorder``) has recorded the time, if it ran. Lower
bounds of the end are the last round of the previous pool, at which all allocations lived, and the time of the last
launch on the usage page. The tenant writes that page, so its value can only lengthen the time for which the tenant is
charged, and not beyond the end that the kernel reports. If lower and upper bound are further apart than ``KNOWN_NS``,
the allocation is metered up to the lower bound, and its last record states how much later the end may be. Time in which
a driver does not yet report the devices as free is not metered.

The monotonic clock is valid during one boot of the machine only. For allocations of an earlier boot the calendar clock
is used instead. Written intervals are never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from calabash.model.allocation import AllocationRecord, UsageRecord, UsageSoFar
from calabash.model.tenancy import project_of
from calabash.node.metering.end_file import LastSeen

SECOND_NS = 1_000_000_000
KNOWN_NS = SECOND_NS  # an end is known if its bounds are no further apart
_SHORTEST_NS = 1000  # unit of time of the billing ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A moment by the monotonic and the calendar clock; ``boot`` is the ID of the boot that the former belongs to."""

    boot: str
    monotonic_ns: int
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Use of one slice at the end of an interval, counted since the grant.

    Args:
        model: model name of the device.
        used_ns: GPU time.
        idle_ns: time without any use of the device.
        most_ratio: largest GPU time that the slice can use in each second, in seconds.
    """

    model: str
    used_ns: int
    idle_ns: int
    most_ratio: float = 1.0


@dataclass(slots=True)
class Meter:
    """Meter of one allocation.

    All offsets are in nanoseconds since the grant. ``until_ns`` is the offset up to which the allocation is metered,
    ``next_sequence`` the number of the next record; ``used_ns`` and ``idle_ns`` are the values of each slice that are
    recorded so far.

    Args:
        base_ns: monotonic time of offset 0.
        lived_until_ns: last offset at which an earlier pool saw the allocation alive; None after this pool has seen it
            alive.
        worked_until_ns: offset of the last launch according to the usage page; 0 after this pool has seen it alive.
        uncertain_ns: how much later than ``until_ns`` its estimated end may be.
        unwritten: the interval that was cut last, until the store has it.
        closed: the allocation has ended, and nothing more is metered.
        anchored: it was granted in this boot of the machine, so monotonic times of its grant are valid.
    """

    record: AllocationRecord
    base_ns: int
    until_ns: int = 0
    next_sequence: int = 0
    used_ns: list[int] = field(default_factory=list)
    idle_ns: list[int] = field(default_factory=list)
    lived_until_ns: int | None = None
    worked_until_ns: int = 0
    uncertain_ns: int = 0
    unwritten: tuple[UsageRecord, ...] = ()
    closed: bool = False
    anchored: bool = True

    def offset_ns(self, now_ns: int) -> int:
        """Return the offset of a moment of the monotonic clock, at least ``until_ns``."""
        return max(self.until_ns, now_ns - self.base_ns)

    @property
    def unseen(self) -> bool:
        """True if this pool has not seen the allocation alive."""
        return self.lived_until_ns is not None and not self.closed

    def end_ns(self, now_ns: int) -> int:
        """Return the offset up to which the allocation is metered if it ends at that moment."""
        return self.offset_ns(now_ns) if self.lived_until_ns is None else max(self.lived_until_ns, self.worked_until_ns)

    def note_activity(self, at_ns: int, now_offset_ns: int) -> None:
        """Note that the usage page reports a launch at monotonic time ``at_ns``.

        This can only lengthen the metered time, and not beyond ``now_offset_ns``.
        """
        if self.lived_until_ns is not None and self.anchored:
            self.worked_until_ns = max(self.worked_until_ns, min(at_ns - self.base_ns, now_offset_ns))

    def bounds(self, seen: LastSeen | None, first_poll_ns: int) -> tuple[int, int]:
        """Return the earliest and latest offset at which an allocation that this pool never saw alive may have ended.

        Args:
            seen: times that the end recorder wrote for it; None: none.
            first_poll_ns: monotonic time of this pool's first poll, which saw no live member process.
        """
        assert self.lived_until_ns is not None
        if not self.anchored:  # it ended before the restart of the machine, when the monotonic clock was 0
            low_ns = self.end_ns(0)
            return low_ns, max(low_ns, -self.base_ns)
        high_ns = self.offset_ns(first_poll_ns)
        low_ns = self.lived_until_ns
        if seen is not None:
            high_ns = min(high_ns, seen.gone_ns - self.base_ns) if seen.gone_ns else high_ns
            # A round after this end saw other allocations alive, not this one.
            low_ns = max(low_ns if low_ns <= high_ns else 0, seen.alive_ns - self.base_ns if seen.alive_ns else 0)
        low_ns = max(self.until_ns, min(max(low_ns, self.worked_until_ns), high_ns))
        return low_ns, max(low_ns, high_ns)

    def settle(self, low_ns: int, high_ns: int) -> None:
        """Set the end of the allocation, which ended at an unknown moment between these offsets."""
        self.lived_until_ns, self.uncertain_ns = estimate(low_ns, high_ns)
        self.worked_until_ns = 0

    def preview(self, offset_ns: int, measured: Sequence[Measured]) -> tuple[UsageRecord, ...]:
        """Return the records that ``cut`` would return, without ending the interval."""
        elapsed_ns = self._elapsed_ns(offset_ns)
        if elapsed_ns <= 0:
            return ()
        return tuple(self._slice(index, elapsed_ns, slice_) for index, slice_ in enumerate(measured))

    def cut(self, offset_ns: int, measured: Sequence[Measured]) -> tuple[UsageRecord, ...]:
        """End the interval at this offset and return its records; none if no time has passed."""
        found = self.preview(offset_ns, measured)
        if not found:
            return ()
        for index, (record, slice_) in enumerate(zip(found, measured, strict=True)):
            self.used_ns[index] += round(record.used_gpu_s * SECOND_NS)
            self.idle_ns[index] = slice_.idle_ns
        self.until_ns += self._elapsed_ns(offset_ns)
        self.next_sequence += len(found)
        return found

    def _elapsed_ns(self, offset_ns: int) -> int:
        """Return the length of the interval that ends at this offset.

        It is positive if the end is estimated, even if no time has passed, because a record must state the uncertainty.
        """
        return max(offset_ns - self.until_ns, _SHORTEST_NS if self.uncertain_ns else 0)

    def _slice(self, index: int, elapsed_ns: int, measured: Measured) -> UsageRecord:
        record, part = self.record, self.record.placement.slices[index]
        elapsed_s = elapsed_ns / SECOND_NS
        # Use cannot exceed the elapsed time, whatever the usage page reports.
        used_s = max(0.0, min((measured.used_ns - self.used_ns[index]) / SECOND_NS, elapsed_s * measured.most_ratio))
        idle_s = max(0.0, min((measured.idle_ns - self.idle_ns[index]) / SECOND_NS, elapsed_s - used_s))
        return UsageRecord(
            allocation=record.id,
            sequence=self.next_sequence + index,
            device=part.device,
            device_model=measured.model,
            mode=record.placement.mode,
            tenant=record.request.tenant,
            project=project_of(record.request.tenant, record.request.queue),
            user=record.user,
            queue=record.request.queue,
            preemptible=record.request.priority < 0,
            from_s=record.granted_at + self.until_ns / SECOND_NS,
            to_s=record.granted_at + (self.until_ns + elapsed_ns) / SECOND_NS,
            memory_mib=part.memory_mib,
            core_percent=part.core_percent,
            allocated_gpu_s=elapsed_s * part.core_percent / 100,
            used_gpu_s=used_s,
            idle_s=idle_s,
            memory_mib_s=elapsed_s * part.memory_mib,
            uncertain_s=self.uncertain_ns / SECOND_NS,
        )


def estimate(low_ns: int, high_ns: int) -> tuple[int, int]:
    """Return up to which offset an allocation is metered that ended between two offsets, and how uncertain its end is.

    The uncertainty is how much later than the returned offset the end may be, in nanoseconds; 0 if the end is known.
    """
    return (high_ns, 0) if high_ns - low_ns <= KNOWN_NS else (low_ns, high_ns - low_ns)


def open_meter(record: AllocationRecord, now: Moment) -> Meter:
    """Return the meter of an allocation without written records."""
    count = len(record.placement.slices)
    return Meter(
        record=record,
        base_ns=_base_ns(record, now),
        used_ns=[0] * count,
        idle_ns=[0] * count,
        anchored=record.boot == now.boot,
    )


def resume_meter(record: AllocationRecord, now: Moment, so_far: UsageSoFar | None, mark: Moment | None) -> Meter:
    """Return the meter of an allocation that an earlier pool granted.

    Args:
        so_far: usage that earlier pools have written; None: none.
        mark: time of the last round of the previous pool, at which all allocations lived; None: unknown.
    """
    meter = open_meter(record, now)
    if so_far is not None:
        meter.until_ns = max(0, round((so_far.until_s - record.granted_at) * SECOND_NS))
        meter.next_sequence = so_far.next_sequence
        meter.used_ns = [round(so_far.used_gpu_s.get(i, 0.0) * SECOND_NS) for i in range(len(meter.used_ns))]
    lived_ns = 0 if mark is None else mark.monotonic_ns - _base_ns(record, mark)
    meter.lived_until_ns = min(max(meter.until_ns, lived_ns), meter.offset_ns(now.monotonic_ns))
    return meter


def _base_ns(record: AllocationRecord, at: Moment) -> int:
    """Return the monotonic time of offset 0. It is computed from calendar time if the grant was in another boot."""
    if record.boot == at.boot and record.granted_ns:
        return record.granted_ns
    return at.monotonic_ns - max(0, round((at.now_s - record.granted_at) * SECOND_NS))
