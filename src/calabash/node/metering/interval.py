"""Meter of one allocation: how far it is metered, and the next interval (pure).

Theory of operation. Every moment of an allocation is its *offset*: nanoseconds of the monotonic clock since it was
granted. An interval goes from the offset at which the last one ended to the present one, so intervals have no gaps and
no overlaps, and a change of the calendar clock has no effect: ``from_s`` and ``to_s`` are the calendar time of the
grant plus the offset. Records of an allocation are numbered from 0, slice by slice, interval by interval, and the store
takes each number once. An interval that has been cut is kept until the store has it, and is not cut anew: a writer that
does not know whether a write succeeded writes the same records again.

A pool that starts reads from the store how far its predecessor has written, and continues from there. An allocation
without a live member process by then has ended in between: after the last moment at which it is known to have lived,
and before the first poll of this pool. The end recorder (``end_recorder``) gives the time, if it ran. Lower bounds are
the last round of the previous pool, at which all lived, and the last launch by the usage page. The tenant writes that
page: it can only lengthen the time that the tenant is charged for, and not beyond the end that the kernel knows. If the
bounds are further apart than ``KNOWN_NS``, the allocation is metered up to the earlier one, and its last record says
how much later the end may be. Time in which a driver does not yet report the devices free is not metered.

The monotonic clock ends with the boot of the machine. Across boots the calendar is used, and written intervals are
never taken back.
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
    """A moment by both clocks; ``boot`` identifies the monotonic clock."""

    boot: str
    monotonic_ns: int
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Use of one slice at the end of an interval: GPU time and idle time since the grant.

    ``most_ratio`` is the largest GPU time that the slice can have in each second.
    """

    model: str
    used_ns: int
    idle_ns: int
    most_ratio: float = 1.0


@dataclass(slots=True)
class Meter:
    """Meter of one allocation.

    ``until_ns`` is the offset up to which it is metered, ``next_sequence`` the number of the next record.

    Args:
        base_ns: monotonic time of offset 0.
        lived_until_ns: last offset at which a pool saw the allocation alive; None once this pool has seen it alive.
        worked_until_ns: offset of its last work by its usage page, if this pool has not seen it alive.
        uncertain_ns: how much later than ``until_ns`` its estimated end may be.
        unwritten: the interval that was cut last, until the store has it.
        closed: nothing more is metered.
        anchored: it was granted in this boot.
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
        """Return the offset of a moment, at least ``until_ns``."""
        return max(self.until_ns, now_ns - self.base_ns)

    @property
    def unseen(self) -> bool:
        """True if this pool has not seen the allocation alive."""
        return self.lived_until_ns is not None and not self.closed

    def end_ns(self, now_ns: int) -> int:
        """Return the offset up to which the allocation is metered if it ends at that moment."""
        return self.offset_ns(now_ns) if self.lived_until_ns is None else max(self.lived_until_ns, self.worked_until_ns)

    def note_activity(self, at_ns: int, now_offset_ns: int) -> None:
        """Note work at a monotonic time, as reported by the usage page; it can only lengthen the metered time."""
        if self.lived_until_ns is not None and self.anchored:
            self.worked_until_ns = max(self.worked_until_ns, min(at_ns - self.base_ns, now_offset_ns))

    def bounds(self, seen: LastSeen | None, first_poll_ns: int) -> tuple[int, int]:
        """Return the offsets between which an allocation has ended that this pool has not seen alive.

        Args:
            seen: what the end recorder saw of it; None: nothing.
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
        """Set the end of the allocation to a moment between these offsets."""
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
        """Return the length of the interval that ends there; positive for an estimated end, so that a record reports it."""
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
    """Return the offset up to which an allocation is metered that ended between two, and how much later its end may be."""
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
    """Return the meter of an allocation of an earlier pool.

    Args:
        so_far: what that pool wrote; None: nothing.
        mark: its last round.
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
    """Return the monotonic time of offset 0; by the calendar if the allocation was granted in another boot."""
    if record.boot == at.boot and record.granted_ns:
        return record.granted_ns
    return at.monotonic_ns - max(0, round((at.now_s - record.granted_at) * SECOND_NS))
