"""Track the use of every held allocation: present values from its usage page, and intervals for metering.

A tenant can write any values to its usage page. So values are limited to possible ones, and a wrong value changes only
the usage of that tenant.

Time on a MIG instance is multiplied by the instance's fraction of the device: an instance with a seventh of the compute
that is busy all the time uses a seventh of a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from calabash.adapters.clock import Clock
from calabash.adapters.host.processes import Process
from calabash.adapters.store import Store
from calabash.model.allocation import AllocationRecord, UsageRecord, UsageSoFar
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import MIG_MODE, AllocationId, Isolation, ModeName, Slice
from calabash.model.units import MIB
from calabash.node.devices.inventory import Inventory
from calabash.node.metering.interval import Measured
from calabash.node.metering.meters import Meters
from calabash.node.metering.usage_totals import GpuTime, Key
from calabash.node.processes.reaper import OpenSlot
from calabash.node.slots import pages
from calabash.node.slots.layout import PagePolicy
from calabash.node.slots.names import LEASE_FILE
from calabash.node.slots.overhead import Residual
from calabash.node.slots.protocol import Slots
from calabash.node.snapshot import SliceUse
from calabash.sharing.registry import SHARING_MODES

Members = Callable[[AllocationId], list[Process]]

CHECKPOINT_NS = 60_000_000_000
RATE_WINDOW_NS = 1_000_000_000
IDLE_NS, IDLE_TICKS = 5_000_000_000, 2  # after this time without GPU time, an allocation is read every IDLE_TICKS ticks
UNTOLD_NS = 250_000_000  # largest lag of the library's report; more than this was not reported


@dataclass(slots=True)
class _Entry:
    """Usage state of one allocation; the lists have one value for each slice, in the order of the placement."""

    slot: OpenSlot
    device_percent: list[int]  # percentage of the device that full use of the slice is
    told_ns: list[int]  # GPU time by the tenant's page; it never decreases
    sampled_ns: list[int]  # GPU time by the driver's utilisation, where no library measures it
    sampled_mib: list[int]
    sampled_at_ns: int
    part_mark: list[tuple[int, int] | None]  # first values of the driver and the page for an instance
    rate: list[float]
    idle_ns: list[int]  # time without any GPU time, so far
    idle_from_ns: list[int]  # when GPU time was last seen, or tracking began
    outside: bool = False  # the driver reports the use
    rate_mark: list[tuple[int, int]] = field(default_factory=list)

    def measured(self, index: int) -> bool:
        """Return True if GPU time of the slice is measured, by the library or by the driver."""
        return self.outside or self.slot.limits.device(index).policy != PagePolicy.NONE


class UsageTracker:
    """Use of all held allocations. ``tick`` is called from the watch thread, reading methods from any thread.

    Args:
        members: returns the live member processes of an allocation.
        model_of: returns the model of a device, which determines the price of its time.
        meters: meters of the allocations; None: new ones.
    """

    def __init__(
        self,
        slots: Slots,
        clock: Clock,
        *,
        members: Members = lambda _: [],
        model_of: Callable[[DeviceUuid], str] = lambda _: "",
        meters: Meters | None = None,
    ) -> None:
        self._slots = slots
        self._members = members
        self._clock = clock
        self._model_of = model_of
        self.meters = meters or Meters(clock)
        self._entries: dict[AllocationId, _Entry] = {}
        self._changes = 0  # number of slots opened or closed so far
        self._opened: tuple[int, tuple[OpenSlot, ...]] | None = None  # with the value of _changes that it belongs to
        self._capped: tuple[tuple[OpenSlot, ...], tuple[OpenSlot, ...]] | None = None
        self._next_tick_ns = 0
        self._ticks = 0
        self._next_checkpoint_ns = clock.monotonic_ns() + CHECKPOINT_NS

    def use(self, record: AllocationRecord) -> list[SliceUse]:
        """Return the present use of each slice, in the order of the placement."""
        entry = self._entries.get(record.id)
        if entry is None:
            return [SliceUse() for _ in record.placement.slices]
        found = []
        now_ns = self._clock.monotonic_ns()
        for index in range(len(record.placement.slices)):
            seen = entry.slot.usage.device(index)
            residual = min(entry.slot.limits.device(index).residual_bytes, pages.BYTES_MAX)
            found.append(
                SliceUse(
                    memory_used_mib=-(-(seen.used_bytes + residual) // MIB) + entry.sampled_mib[index],
                    core_used_percent=round(entry.rate[index], 1),
                    denied=seen.denied_count,
                    throttled_s=round(seen.throttled_ns / 1e9, 3),
                    idle_s=max(0.0, round((now_ns - entry.idle_from_ns[index]) / 1e9, 1)),
                )
            )
        return found

    @property
    def is_due(self) -> bool:
        """True if it is time to update the rates of use, which ``tick`` does."""
        return self._clock.monotonic_ns() >= self._next_tick_ns

    def tick(self, records: Iterable[AllocationRecord]) -> dict[AllocationId, str]:
        """Update the rates of use; return the allocations whose tenant has resized its usage page, with a message."""
        now_ns = self._clock.monotonic_ns()
        self._next_tick_ns = now_ns + RATE_WINDOW_NS
        self._ticks += 1
        spoilt: dict[AllocationId, str] = {}
        for record in self.meters.open_records(records):
            try:
                entry = self._open(record)
                if self._ticks % IDLE_TICKS and not any(entry.rate) and now_ns - max(entry.idle_from_ns) > IDLE_NS:
                    continue
                entry.slot.usage.require_intact()
            except CalabashError as error:
                if self._slots.exists(record.id):  # otherwise it was released just now
                    spoilt[record.id] = error.message
            else:
                self._rates(entry, now_ns)
        return spoilt

    def sample(self, records: Iterable[AllocationRecord], inventory: Inventory) -> None:
        """Measure allocations that use a device alone and without the shim library, by the driver's utilisation.

        The time since the last call counts as used in proportion to the present utilisation.
        """
        now_ns = self._clock.monotonic_ns()
        for record in records:
            mode = SHARING_MODES.get(record.placement.mode)
            if mode is None or mode.isolation is not Isolation.HARDWARE or (entry := self._entry(record)) is None:
                continue
            elapsed_ns, entry.sampled_at_ns = now_ns - entry.sampled_at_ns, now_ns
            for index, part in enumerate(record.placement.slices):
                reading = inventory.reading(part.device)
                entry.outside = reading is not None
                if reading is not None and part.profile:
                    uuid = entry.slot.limits.uuids[index]
                    entry.sampled_mib[index] = sum(p.used_mib for p in reading.processes if p.part == uuid)
                    if part.part < 0:
                        _sample_partition(
                            entry, index, next((p.busy_ns for p in reading.parts if p.uuid == uuid), None)
                        )
                elif reading is not None:
                    entry.sampled_mib[index] = reading.memory_used_mib
                    entry.sampled_ns[index] += elapsed_ns * max(0, min(100, reading.utilization_percent)) // 100

    def capped_slots(self) -> tuple[OpenSlot, ...]:
        """Return the open slots of allocations with a memory limit.

        The same object is returned until a slot is opened or closed.
        """
        known = self._capped
        opened = self.open_slots()
        if known is None or known[0] is not opened:
            known = self._capped = (opened, tuple(slot for slot in opened if slot.is_capped))
        return known[1]

    def open_slots(self) -> tuple[OpenSlot, ...]:
        """Return the open slots of all allocations, including those without limits.

        The same object is returned until a slot is opened or closed.
        """
        changes, known = self._changes, self._opened
        if known is None or known[0] != changes:
            known = self._opened = (changes, tuple(entry.slot for entry in list(self._entries.values())))
        return known[1]

    def checkpoint(self, records: Iterable[AllocationRecord], store: Store) -> None:
        """Write the usage of all allocations every CHECKPOINT_NS, so that a crash loses only the time since then."""
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._next_checkpoint_ns:
            self._next_checkpoint_ns = now_ns + CHECKPOINT_NS
            self._write(self.meters.cut(records, self._measured), store)

    def write(self, records: Iterable[AllocationRecord], store: Store) -> None:
        """Write the intervals of all metered allocations up to now. May be called from any thread."""
        self._write(self.meters.cut(records, self._measured, begin=False), store)

    def _write(self, due: Mapping[AllocationId, tuple[UsageRecord, ...]], store: Store) -> None:
        store.add_usage([u for usage in due.values() for u in usage])
        self.meters.written(due)

    def preview(self, records: Iterable[AllocationRecord]) -> list[UsageRecord]:
        """Return the records that the store may not have, up to now. May be called from any thread."""
        return self.meters.preview(records, self._measured)

    def totals(self, records: Iterable[AllocationRecord]) -> Mapping[Key, GpuTime]:
        """Return the GPU time of tenants and projects up to now. May be called from any thread."""
        return self.meters.totals(records, self._measured)

    def close(self, record: AllocationRecord) -> Sequence[UsageRecord]:
        """End the metering of an allocation, close its pages and return its last records; its slot must still exist."""
        usage = self.meters.close(record, self._measured)
        self._entries.pop(record.id, None)
        self._changes += 1
        return usage

    def restore(self, record: AllocationRecord, so_far: UsageSoFar | None) -> None:
        """Continue the metering of an allocation that an earlier pool granted, before the first sweep of allocations.

        ``so_far`` is the usage that earlier pools have written; None: none.
        """
        meter = self.meters.resume(record, so_far)
        entry = self._entry(record)
        if entry is None:
            return
        now_ns = meter.offset_ns(self._clock.monotonic_ns())
        for index in range(len(record.placement.slices)):
            charged_ns = _charged_ns(entry, index)
            # Time sampled from the driver is known only from what the previous pool wrote.
            entry.sampled_ns[index] = max(0, meter.used_ns[index] - charged_ns)
            if entry.measured(index) and charged_ns <= meter.used_ns[index]:
                entry.idle_ns[index] = now_ns - meter.until_ns
            meter.note_activity(entry.slot.usage.demand_ns(index), now_ns)

    def _measured(self, record: AllocationRecord) -> list[Measured]:
        entry = self._entry(record)
        return [
            Measured(
                model=self._model_of(part.device),
                used_ns=_charged_ns(entry, index) if entry else 0,
                idle_ns=entry.idle_ns[index] if entry else 0,
                most_ratio=_part_percent(record.placement.mode, part) / 100,
            )
            for index, part in enumerate(record.placement.slices)
        ]

    def _entry(self, record: AllocationRecord) -> _Entry | None:
        try:
            return self._open(record)
        except CalabashError:
            return None

    def _open(self, record: AllocationRecord) -> _Entry:
        """Return the entry of an allocation; create it if needed.

        Raises:
            CalabashError: NOT_FOUND if the allocation is not metered any more; BAD_FILE if its pages cannot be opened.
        """
        entry = self._entries.get(record.id)
        if entry is None and self.meters.is_metered(record):
            opened = self._slots.pages(record.id)
            count = len(record.placement.slices)
            slot = OpenSlot(
                usage=opened.usage,
                limits=opened.limits,
                lease=self._slots.path(record.id) / LEASE_FILE,
                residuals=[Residual() for _ in record.placement.slices],
                members=partial(self._members, record.id),
            )
            entry = _Entry(
                slot=slot,
                device_percent=[_part_percent(record.placement.mode, part) for part in record.placement.slices],
                told_ns=[0] * count,
                sampled_ns=[0] * count,
                sampled_mib=[0] * count,
                sampled_at_ns=self._clock.monotonic_ns(),
                part_mark=[None] * count,
                rate=[0.0] * count,
                idle_ns=[0] * count,
                idle_from_ns=[self._clock.monotonic_ns()] * count,
            )
            self._entries[record.id] = entry
            self._changes += 1
            if not self.meters.is_metered(record):  # closed meanwhile, perhaps before it was added
                if self._entries.get(record.id) is entry:
                    del self._entries[record.id]
                    self._changes += 1
                entry = None
        if entry is None:
            raise CalabashError(f"allocation {record.id!r} is not metered any more", reason=Reason.NOT_FOUND)
        return entry

    def _rates(self, entry: _Entry, now_ns: int) -> None:
        charged = [_charged_ns(entry, i) for i in range(len(entry.rate))]
        if not entry.rate_mark:
            entry.rate_mark = [(now_ns, ns) for ns in charged]
        for index, (since_ns, before_ns) in enumerate(entry.rate_mark):
            elapsed_ns = now_ns - since_ns
            if elapsed_ns >= RATE_WINDOW_NS:
                percent = 100.0 * (charged[index] - before_ns) / elapsed_ns
                entry.rate[index] = max(0.0, min(100.0, percent))
                if charged[index] > before_ns or not entry.measured(index):
                    entry.idle_from_ns[index] = now_ns
                else:
                    entry.idle_ns[index] += elapsed_ns
                entry.rate_mark[index] = (now_ns, charged[index])


def _charged_ns(entry: _Entry, index: int) -> int:
    """Return the GPU time that slice ``index`` of the allocation has used so far, in ns.

    It is the sum of the highest value seen on the usage page, the unreported time that the auditor (``node.audit``)
    found, and the time that was sampled from the driver. The last is 0 for slices that the shim library measures.
    """
    entry.told_ns[index] = max(entry.told_ns[index], entry.slot.usage.charged_ns(index))
    unreported_ns = entry.slot.limits.device(index).unreported_ns
    told_ns = (entry.told_ns[index] + unreported_ns) * entry.device_percent[index] // 100
    return told_ns + entry.sampled_ns[index]


def _sample_partition(entry: _Entry, index: int, busy_ns: int | None) -> None:
    """Add the GPU time of a MIG instance that the driver measured and the shim library did not report.

    ``busy_ns`` is the driver's counter of the instance's GPU time; None: unknown. A difference up to UNTOLD_NS is a lag
    of the library and is not added.
    """
    told_ns = max(entry.told_ns[index], entry.slot.usage.charged_ns(index))
    mark = entry.part_mark[index]
    if busy_ns is None or mark is None or busy_ns < mark[0]:
        entry.part_mark[index] = None if busy_ns is None else (busy_ns, told_ns)
        return
    beyond_ns = (busy_ns - mark[0]) - (told_ns - mark[1])
    if beyond_ns > UNTOLD_NS:
        entry.sampled_ns[index] += beyond_ns * entry.device_percent[index] // 100
        entry.part_mark[index] = (busy_ns, told_ns)


def _part_percent(mode: ModeName, part: Slice) -> int:
    """Return the percentage of the device that a busy slice uses: its compute share in mode ``mig``, else 100."""
    return part.core_percent if mode == MIG_MODE else 100
