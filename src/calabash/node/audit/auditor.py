"""Audit the GPU time that usage pages report against the drivers, and stop programs that ignore their suspension.

The auditor reads from the drivers how much of the devices' time each allocation used, and charges the time that its
usage page did not report (``compare``). It stops a program by force if the program runs although the arbiter has
suspended it. Stopping needs control groups, so it is not available where membership is recorded in lease files.

An allocation that is known to ignore suspension is *paced*: it is stopped and continued by a duty cycle
(``duty_cycle``). ``step`` does that between two audits, and devices are audited more often meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId
from calabash.node.audit.compare import IGNORED_NS, Audit, Throttle, Window, check, throttle
from calabash.node.audit.duty_cycle import due_ns
from calabash.node.audit.sample_evidence import EVIDENCE, score_after
from calabash.node.devices.inventory import Inventory
from calabash.node.processes.reaper import OpenSlot
from calabash.node.slots.clamped_counters import MS, ClampedCounter
from calabash.node.slots.layout import Gate, PagePolicy
from calabash.node.slots.pages import LimitsPage

log = structlog.get_logger(__name__)

WINDOW_NS = 250 * MS
PACED_WINDOW_NS = 100 * MS  # while an allocation is paced; drivers do not sample more often
WINDOW_NS_MAX = 1_500 * MS  # longest time that one sample stands for
REPORT_AGAIN_NS = 60_000 * MS
BURST_NS = 40 * MS
STEP_S_MIN = 0.002

ReportUnreported = Callable[[AllocationId, DeviceUuid, int], None]


@dataclass(slots=True)
class _Device:
    """Progress of reading a device's samples, in microseconds of the driver's clock, and their value as evidence."""

    after_us: int = 0
    read_us: dict[int, int] = field(default_factory=dict)  # by pid
    score: int = EVIDENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Had:
    """Use of a device by an allocation in an audit window that ends now.

    Args:
        seen_ns: device time according to the driver.
        elapsed_ns: length of the window.
        owed_ns: device time that the usage page did not report and that is charged now.
        share: fraction of the device that the slice may use, 0..1.
    """

    seen_ns: int
    elapsed_ns: int
    owed_ns: int
    share: float

    @property
    def excess_ns(self) -> float:
        return self.seen_ns - self.share * self.elapsed_ns


@dataclass(slots=True)
class _Slice:
    """Audit state of one slice, up to the last comparison.

    Args:
        believed: the GPU time on the usage page, clamped to plausible values.
        told_ns: value of this counter at the last comparison.
        since_ns: time of the last comparison.
    """

    believed: ClampedCounter = field(default_factory=ClampedCounter)
    audit: Audit = field(default_factory=Audit)
    told_ns: int = 0
    since_ns: int = 0


class AuditedMembers(Protocol):
    """Processes of allocations, as far as the auditor needs them; ``Membership`` implements it."""

    def allocation_of(self, pid: int) -> AllocationId | None:
        """Return the allocation of a process."""

    def freeze(self, allocation: AllocationId, frozen: bool) -> None:
        """Stop every member process if ``frozen``, else continue all."""


class Auditor:
    """Auditor of the GPU time of all slices with limits, on all devices of the node.

    Args:
        members: processes of allocations.
        freezes: the node can stop the processes of an allocation.
        report: called with allocation, device and nanoseconds, at most once a minute for each allocation that
            under-reports.
    """

    def __init__(
        self,
        inventory: Inventory,
        members: AuditedMembers,
        *,
        freezes: bool,
        report: ReportUnreported,
    ) -> None:
        self._inventory = inventory
        self._members, self._freezes = members, freezes
        self._report = report
        self._devices: dict[DeviceUuid, _Device] = {}
        self._slices: dict[tuple[AllocationId, int], _Slice] = {}
        self._throttles: dict[AllocationId, Throttle] = {}
        self._reported_at_ns: dict[AllocationId, int] = {}
        self._owners: dict[int, AllocationId] = {}
        self._next_ns = 0
        self._had: dict[AllocationId, dict[int, _Had]] = {}  # use in the windows that end now, by device index
        self._paced: dict[AllocationId, LimitsPage] = {}
        self._open_slots: tuple[OpenSlot, ...] = ()
        self._pages: dict[AllocationId, OpenSlot] = {}
        self._by_device: dict[DeviceUuid, list[tuple[OpenSlot, int]]] = {}
        self._worked_ns: dict[AllocationId, int] = {}  # when the driver last saw it at work
        self._restless: set[AllocationId] = set()  # allocations that are stopped, suspended or paced
        self._thawed: set[AllocationId] = (
            set()
        )  # allocations that run although they are to be stopped, until the next tick

    def tick(self, open_slots: Iterable[OpenSlot], now_ns: int) -> None:
        """Audit every device if a window has ended, and stop or continue allocations accordingly.

        Args:
            open_slots: the allocations to audit; the state of all others is dropped. If the same tuple is passed again,
                it is not read again.
        """
        if open_slots is not self._open_slots:
            self._take_over(open_slots if isinstance(open_slots, tuple) else tuple(open_slots))
        self._had.clear()
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + (PACED_WINDOW_NS if self._paced else WINDOW_NS)
            for uuid, parts in self._by_device.items():
                if not self._inventory.is_unused(uuid):
                    self._window(uuid, parts, now_ns)
        if self._freezes:
            for name in self._to_hold(now_ns):
                self._hold(name, self._pages[name].limits, now_ns)
            self._had.clear()

    @property
    def is_watching(self) -> bool:
        """True if an allocation has worked recently, or is stopped, suspended or paced."""
        return bool(self._worked_ns or self._restless or self._thawed)

    def step(self, now_ns: int) -> float | None:
        """Take the due steps of duty cycles; return the seconds until the next one, None if no allocation is paced."""
        waits_s = []
        for name, limits in list(self._paced.items()):
            if now_ns >= self._due_ns(name):
                self._hold(name, limits, now_ns)
            waits_s.append((self._due_ns(name) - now_ns) / 1e9)
        return max(STEP_S_MIN, min(waits_s)) if waits_s else None

    def thaw_all(self) -> None:
        """Continue all stopped allocations and drop their state."""
        for name, state in self._throttles.items():
            if state.frozen and self._freezes:
                self._members.freeze(name, False)
        self._throttles.clear()
        self._paced.clear()

    def thaw_for_driver(self) -> None:
        """Continue all stopped allocations until the next ``tick``, in case a driver waits for one of their processes.

        May be called from any thread.
        """
        for name, state in list(self._throttles.items()):
            if state.frozen and self._freezes:
                self._thawed.add(name)
                self._members.freeze(name, False)

    # -- internal ------------------------------------------------------------------------------------------------

    def _take_over(self, open_slots: tuple[OpenSlot, ...]) -> None:
        """Replace the set of audited allocations by these, and drop the state of all others."""
        self._open_slots = open_slots
        self._pages = {slot.limits.allocation: slot for slot in open_slots}
        self._by_device = {}
        for slot in self._pages.values():
            for index, uuid in enumerate(slot.limits.uuids):
                self._by_device.setdefault(uuid, []).append((slot, index))
        self._drop_others(self._pages.keys())

    def _to_hold(self, now_ns: int) -> list[AllocationId]:
        """Return the allocations that may have to be stopped or continued.

        These are new allocations, allocations that used a device in the last IGNORED_NS according to the driver, and
        allocations that were stopped or suspended at the last tick.
        """
        for name, had in self._had.items():
            if any(h.seen_ns > 0 for h in had.values()):
                self._worked_ns[name] = now_ns
        self._worked_ns = {name: at for name, at in self._worked_ns.items() if now_ns - at < IGNORED_NS}
        watched = {*self._worked_ns, *self._thawed, *self._restless, *(self._pages.keys() - self._throttles.keys())}
        return [name for name in self._pages if name in watched] if watched else []

    def _drop_others(self, held: Iterable[AllocationId]) -> None:
        names = set(held)
        self._slices = {key: slice_ for key, slice_ in self._slices.items() if key[0] in names}
        self._throttles = {name: state for name, state in self._throttles.items() if name in names}
        self._paced = {name: limits for name, limits in self._paced.items() if name in names}
        self._reported_at_ns = {name: at for name, at in self._reported_at_ns.items() if name in names}
        self._worked_ns = {name: at for name, at in self._worked_ns.items() if name in names}
        self._restless &= names

    def _window(self, uuid: DeviceUuid, parts: list[tuple[OpenSlot, int]], now_ns: int) -> None:
        device = self._devices.setdefault(uuid, _Device())
        try:
            seen = self._seen(uuid, device)
        except (CalabashError, KeyError):
            return  # the next answer includes these samples
        if seen is None:
            return
        windows = [read for one in parts if (read := self._read(one, seen, now_ns)) is not None]
        score = device.score
        if not self._inventory.driver_of(uuid).samples_are_exact:
            score = score_after(score, ((w.told_ns / w.elapsed_ns, w.seen_ns) for _, w in windows))
        if device.score >= EVIDENCE > score:
            log.warning("the driver has no samples of programs that work; usage is not verified for now", device=uuid)
        device.score = score
        for (slot, index), window in windows:
            self._compare(slot, index, window, is_evidence=score >= EVIDENCE)

    def _read(
        self, part: tuple[OpenSlot, int], seen: dict[AllocationId, int], now_ns: int
    ) -> tuple[tuple[OpenSlot, int], Window] | None:
        """Return the window of a slice that ends now, and begin the next; None if it has no length."""
        slot, index = part
        name = slot.limits.allocation
        state = self._slices.setdefault((name, index), _Slice(since_ns=now_ns))
        usage = slot.usage.device(index)
        value_ns = state.believed.read(usage.charged_ns, now_ns, burst_ns=BURST_NS, inflight_ns=usage.inflight_ns)
        elapsed_ns, told_ns = now_ns - state.since_ns, value_ns - state.told_ns
        if elapsed_ns <= 0:
            return None
        state.told_ns, state.since_ns = value_ns, now_ns
        window = Window(
            now_ns=now_ns,
            elapsed_ns=elapsed_ns,
            seen_ns=seen.get(name, 0),
            told_ns=told_ns,
            inflight_ns=usage.inflight_ns,
        )
        return part, window

    def _compare(self, slot: OpenSlot, index: int, window: Window, *, is_evidence: bool) -> None:
        """Charge what a usage page did not report, if the driver's samples are evidence for it."""
        name, limits, seen_ns = slot.limits.allocation, slot.limits, window.seen_ns
        part = self._slices[name, index]
        if limits.device(index).policy == PagePolicy.NONE:
            # no library measures this slice: charge what the driver saw
            limits.add_seen(index, seen_ns, unreported_ns=seen_ns)
            return
        if not is_evidence:
            part.audit = Audit()
            return
        part.audit, owed_ns = check(part.audit, window)
        had = _Had(seen_ns=seen_ns, elapsed_ns=window.elapsed_ns, owed_ns=owed_ns, share=_share(limits, index))
        self._had.setdefault(name, {})[index] = had
        limits.add_seen(index, seen_ns, unreported_ns=owed_ns)
        if owed_ns and window.now_ns - self._reported_at_ns.get(name, -REPORT_AGAIN_NS) >= REPORT_AGAIN_NS:
            self._reported_at_ns[name] = window.now_ns
            self._report(name, limits.uuids[index], owed_ns)

    def _seen(self, uuid: DeviceUuid, device: _Device) -> dict[AllocationId, int] | None:
        """Return the nanoseconds of device time by allocation since the last answer; None if there is no new sample."""
        first = device.after_us == 0
        samples = self._inventory.driver_of(uuid).utilization(uuid, device.after_us)
        latest_us = max((sample.at_us for sample in samples), default=0)
        if latest_us <= device.after_us:
            return None
        seen: dict[AllocationId, int] = {}
        owners: dict[int, AllocationId] = {}
        for sample in samples:
            since_us = max(device.read_us.get(sample.pid, device.after_us), sample.at_us - WINDOW_NS_MAX // 1000)
            owner = self._members.allocation_of(sample.pid) or self._owners.get(sample.pid)
            if owner is None or first:
                continue
            owners[sample.pid] = owner
            part_ns = (sample.at_us - since_us) * 10 * sample.percent
            seen[owner] = seen.get(owner, 0) + max(0, part_ns)
        self._owners = owners
        device.read_us = {sample.pid: sample.at_us for sample in samples}
        device.after_us = latest_us
        return {} if first else seen

    def _hold(self, name: AllocationId, limits: LimitsPage, now_ns: int) -> None:
        assert self._freezes
        state = self._throttles.get(name)
        if state is None:
            self._members.freeze(name, False)  # an earlier agent may have stopped it
            state = self._throttles[name] = Throttle()
        indices = [i for i in range(limits.device_count) if _suspended(limits, i)]
        had = self._had.get(name, {})
        most = max(had.values(), key=lambda h: h.excess_ns, default=None)
        after = throttle(
            state,
            suspended=bool(indices),
            seen_ratio=max((had[i].seen_ns / had[i].elapsed_ns for i in indices if i in had), default=None),
            now_ns=now_ns,
            share=most.share if most else min(_share(limits, i) for i in range(limits.device_count)),
            seen_ns=most.seen_ns if most else None,
            under_reports=any(h.owed_ns for h in had.values()),
        )
        if after.frozen is not state.frozen or name in self._thawed:
            self._thawed.discard(name)
            self._members.freeze(name, after.frozen)
        self._throttles[name] = after
        if after.suspended_ns or after.frozen or after.pace is not None:
            self._restless.add(name)
        else:
            self._restless.discard(name)
        if after.pace is not None:
            self._paced[name] = limits
        else:
            self._paced.pop(name, None)

    def _due_ns(self, name: AllocationId) -> int:
        state = self._throttles.get(name)
        return due_ns(state.pace) if state is not None and state.pace is not None else 0


def _share(limits: LimitsPage, index: int) -> float:
    """Return the fraction of the device that the slice may use at any time; 1 if its policy promises no share."""
    device = limits.device(index)
    return device.core_percent / 100 if device.policy in {PagePolicy.FIXED, PagePolicy.BURST} else 1.0


def _suspended(limits: LimitsPage, index: int) -> bool:
    """Return True if the arbiter gives the slice no time window until its container has paid its debt."""
    device = limits.device(index)
    return device.gate == Gate.TURN and device.plan.start_ns == 0 and device.plan.end_ns == 0
