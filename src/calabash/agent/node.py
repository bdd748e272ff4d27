"""The agent of one node: joins inventory, book and watch threads, and is what a front end holds.

Threads: ``watch`` sweeps the book ten times a second; ``look`` keeps ledgers true by what the drivers say and reads
the cards once a second; one thread per driver waits for its events. All shared state is behind ``lock``; drivers are
never asked while it is held.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from calabash.agent.allocations import Allocations, Changes
from calabash.agent.arbiter_process import ArbiterProcess
from calabash.agent.inventory import HealthChange, Inventory
from calabash.agent.ledgers import Ledgers
from calabash.agent.membership import choose_membership
from calabash.agent.pagelib import PageLibrary
from calabash.agent.probe import try_card
from calabash.agent.reclaim import Reclaimer
from calabash.agent.slot_content import SlotDevice, SlotSpec
from calabash.agent.slots import choose_slots
from calabash.agent.snapshot import AllocationSnapshot, DeviceSnapshot, NodeSnapshot
from calabash.agent.terminator import Terminator
from calabash.model.allocation import AllocationRecord
from calabash.model.device import Device, DeviceUuid, Health, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.model.units import MIB
from calabash.seams.clock import Clock
from calabash.seams.gpu.protocol import GpuDriver
from calabash.seams.host.processes import Process
from calabash.seams.store import Store
from calabash.sharing.protocol import Edits, Misfit
from calabash.sharing.registry import fits, mode_named

SWEEP_PERIOD_S = 0.1
LOOK_PERIOD_S = 0.2
READ_PERIOD_S = 1.0
EVENT_WAIT_S = 1.0
EVENTS_WAITING_MAX = 1000

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A journalled allocation, and what its program needs to use it."""

    record: AllocationRecord
    edits: Edits


DeviceState = DeviceSnapshot


class NodeAgent:
    """Everything about this node's cards. ``changed`` is called, without the lock, when room may have appeared."""

    def __init__(
        self,
        *,
        home: Path,
        store: Store,
        clock: Clock,
        drivers: Sequence[GpuDriver],
        library: Path,
        environment: Mapping[str, str] | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.lock = threading.RLock()
        self.node = NodeName(socket.gethostname())
        self.membership = choose_membership(home, home / "alloc")
        self.slots = choose_slots(home / "alloc", membership=self.membership.form)
        self._environment = dict(environment or {})  # what leads a program to the simulated node, if it is one
        self.inventory = Inventory(drivers, probe=self._probe)
        self.ledgers = Ledgers(self.slots, clock, members=self.membership.processes)
        self.book = Allocations(
            store=store,
            slots=self.slots,
            membership=self.membership,
            clock=clock,
            usage_of=self.ledgers.close,
        )
        self.changed = changed
        self._store = store
        self._clock = clock
        self._library = library
        self._terminator = Terminator(self.membership)
        self._subscribers: list[Callable[[], None]] = []
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._threads: list[threading.Thread] = []
        self._reclaimer = _reclaimer(self.inventory)
        self._arbiter = ArbiterProcess(home, clock)
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_WAITING_MAX)
        self._failure = ""

    # -- life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Adopt what is there, learn what contexts cost, then watch."""
        self._learn_contexts()
        with self.lock:
            self._record(self.book.recover())
            for record in self.book.records():
                self.ledgers.restore(record, self._store.usage(record.id))
        self._threads = [
            threading.Thread(target=self._watch, name="watch", daemon=True),
            threading.Thread(target=self._look, name="look", daemon=True),
        ]
        for driver in self.inventory.drivers:
            waiter = threading.Thread(target=self._wait_events, args=(driver,), name="events", daemon=True)
            self._threads.append(waiter)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop watching; whoever runs keeps running under the same limits."""
        self._stop.set()
        self._wake.set()
        deadline_ns = self._clock.monotonic_ns() + 3_000_000_000  # a thread that a hung driver holds is left behind
        for thread in self._threads:
            thread.join(timeout=max(0.0, (deadline_ns - self._clock.monotonic_ns()) / 1e9))
        self._arbiter.stop()
        self._flush_events()
        self.membership.close()

    def arbiter_pid(self) -> int:
        """0 when it is just being started again."""
        return self._arbiter.pid

    # -- what a front end asks ---------------------------------------------------------------------------------

    def snapshot(self, *, processes: bool = False) -> NodeSnapshot:
        """Everything about the node now. ``processes``: with the processes of each allocation, which takes longer."""
        with self.lock:
            devices, records = tuple(self.devices()), self.book.records()
        allocations = tuple(
            AllocationSnapshot(
                record=record,
                use=tuple(self.ledgers.use(record)),
                processes=tuple(self.membership.processes(record.id)) if processes else (),
                ending=self.book.ending(record.id),
            )
            for record in records
        )
        return NodeSnapshot(
            node=self.node,
            devices=devices,
            allocations=allocations,
            membership=self.membership.form,
            slots=self.slots.form,
        )

    def devices(self) -> list[DeviceSnapshot]:
        """All devices with what is on them."""
        with self.lock:
            return [self._device(device) for device in self.inventory.devices()]

    def _device(self, device: Device) -> DeviceSnapshot:
        held, mode = self.book.held_on(device.uuid)
        return DeviceSnapshot(
            device=device,
            mode=mode,
            held=tuple(held),
            allocations=tuple(self.book.allocations_on(device.uuid)),
            reading=self.inventory.reading(device.uuid),
            cause=self.inventory.cause(device.uuid),
            orphans=tuple(self.book.orphaned(device.uuid)),
        )

    def record(self, allocation: AllocationId) -> AllocationRecord | None:
        """One that is held; None when it is not, or not any more."""
        return self.book.get(allocation)

    def records(self) -> list[AllocationRecord]:
        """Everything held, oldest first."""
        return self.book.records()

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Have it called, without any lock, whenever room may have appeared."""
        self._subscribers.append(changed)

    def orphaned(self, device: DeviceUuid) -> bool:
        """Somebody the journal does not know is on the device; it takes no new work."""
        return bool(self.book.orphaned(device))

    def _require_room(self, record: AllocationRecord) -> None:
        """The promise is made here, so the room is looked at here, whatever the scheduler believes."""
        own_uid = os.geteuid()
        if self.membership.form == "lease" and record.uid not in {-1, own_uid}:
            raise CalabashError(
                f"this pool serves user {own_uid} only, not {record.uid}: it runs without control groups",
                reason=Reason.NOT_PERMITTED,
                hint="start the pool as root, or one of your own: calabash up",
            )
        for part in record.placement.slices:
            device = next((d for d in self.inventory.devices() if d.uuid == part.device), None)
            if device is None:
                raise CalabashError(f"device {part.device} is not here", reason=Reason.UNHEALTHY)
            orphans = self.book.orphaned(part.device)
            if orphans:
                raise CalabashError(
                    f"device {device.index} is used by {orphans[0]}, which the journal does not know",
                    reason=Reason.UNHEALTHY,
                )
            held, mode = self.book.held_on(part.device)
            answer = fits(device, mode, held, record.request)
            if isinstance(answer, Misfit):
                raise CalabashError(f"device {device.index} {answer.message}", reason=answer.reason)

    def grant(self, record: AllocationRecord) -> Grant:
        """Journal it and make its slot, if there is room. Raises CalabashError and then holds nothing.

        The reason says what is missing: UNHEALTHY when a device takes no work, NO_CAPACITY, NO_MEMORY, NO_CORES or
        MODE_CONFLICT when others are still on it, DISK_FULL, STORE_UNAVAILABLE, NOT_PERMITTED.
        """
        mode = mode_named(record.placement.mode)
        slices = record.placement.slices
        edits = mode.container_edits(slices, library=str(self._library), slot=str(self.slots.path(record.id)))
        reclaimer = self._reclaimer
        if edits.needs_slot and (reclaimer is None or not self._library.is_file()):
            # Without the library the limits would be words: rather no slice than one that nobody keeps to.
            raise CalabashError(
                f"{self._library.name} has not been built, so mode {mode.name} cannot be enforced",
                reason=Reason.BAD_FILE,
                hint="build it with: make native",
            )
        devices = tuple(
            SlotDevice(
                uuid=part.device,
                memory_limit_bytes=part.memory_mib * MIB if edits.needs_slot else 0,
                core_percent=max(1, part.core_percent),
                policy=record.request.policy if edits.needs_slot else None,
                priority=record.request.priority,
            )
            for part in slices
        )
        leaseless = self.membership.form == "kernel"
        tenant_uid = record.uid if record.uid >= 0 and os.geteuid() == 0 else None
        spec = SlotSpec(allocation=record.id, devices=devices, tenant_uid=tenant_uid, leaseless=leaseless)
        with self.lock:
            self._require_room(record)
            granted = self.book.grant(record, spec)
            if reclaimer is not None and edits.needs_slot:
                reclaimer.publish_context(self.slots.pages(record.id).limits)
        self.event("granted", allocation=record.id, message=describe(granted, self.inventory.devices()))
        return Grant(record=granted, edits=edits)

    def enter(self, allocation: AllocationId, process: Process) -> AllocationRecord:
        """Make a process the program of an allocation: it, and whatever it starts from now on, is a member.

        Raises CalabashError(NOT_FOUND) when the allocation is not held any more or the process has ended.
        """
        if self.book.get(allocation) is None:
            raise _not_held(allocation)
        # Without the lock: the kernel may take some milliseconds. An allocation that ends meanwhile ends this one too.
        self.membership.enter(allocation, process)
        record = self.started(allocation, process)
        if record is None:
            raise _not_held(allocation)
        return record

    def started(self, allocation: AllocationId, program: Process | None) -> AllocationRecord | None:
        with self.lock:
            before = self.book.get(allocation)
            after = self.book.started(allocation, program)
        if before is not None and after is not None and before.state is not after.state:
            self.event("started", allocation=allocation)
        return after

    def end(self, allocation: AllocationId, *, reason: str, explanation: str, gently: bool = False) -> bool:
        """End its programs (``gently``: wait for them) and release it; False when it is not held."""
        with self.lock:
            known = self.book.end(allocation, reason=reason, explanation=explanation, gently=gently)
        self._wake.set()
        return known

    def sweep(self) -> Changes:
        """Settle all allocations now."""
        with self.lock:
            changes = self.book.sweep()
            self._record(changes)
            self._terminator.end((r.id for r in changes.to_end), self._clock.monotonic_ns())
        if changes.released:
            self._tell()
        return changes

    def processes_of(self, allocation: AllocationId) -> list[Process]:
        """Its live processes. What a tenant writes into its pages is not asked: these may be killed."""
        return self.membership.processes(allocation)

    def processes(self) -> dict[AllocationId, list[Process]]:
        """The same for everything that is held."""
        return {record.id: self.membership.processes(record.id) for record in self.book.records()}

    def event(self, kind: str, *, reason: str = "", allocation: str = "", device: str = "", message: str = "") -> None:
        """Tell people; kept until the store takes it, the oldest lost when there are too many."""
        fields = {"kind": kind, "reason": reason, "allocation": allocation, "device": device, "message": message}
        log.info(kind, **{k: v for k, v in fields.items() if v and k != "kind"})
        self._events.append({"at": self._clock.now_s(), **fields})

    def _probe(self, driver: GpuDriver, device: Device) -> bool:
        return try_card(driver, device, self._environment).passed

    def _learn_contexts(self) -> None:
        """One healthy card of each model is tried out."""
        if self._reclaimer is None:
            return
        models = {d.model: d for d in self.inventory.devices() if d.health is Health.HEALTHY}
        for model, device in models.items():
            probed = try_card(self.inventory.driver_of(device.uuid), device, self._environment)
            self._reclaimer.learn_context(model, probed.context_bytes)
            log.info("tried a card", model=model, passed=probed.passed, context_mib=probed.context_bytes // MIB)

    # -- threads -----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Leases, arbiter, ledgers: nothing in here asks a driver, so no card can hold it up."""
        while not self._stop.is_set():
            with self._surviving("watch"):
                self.sweep()
                self._arbiter.keep()
                self._end_spoilt(self.ledgers.tick(self.book.records()))
                self.ledgers.checkpoint(self.book.records(), self._store)
                self._flush_events()
            self._wake.wait(SWEEP_PERIOD_S)
            self._wake.clear()

    def _end_spoilt(self, spoilt: Mapping[AllocationId, str]) -> None:
        """Who cuts or stretches its page wants to harm somebody: it is not asked politely."""
        for allocation, how in spoilt.items():
            if not self.book.ending(allocation):
                self.event("hostile", reason=Reason.BAD_FILE, allocation=allocation, message=how)
                self.end(allocation, reason="hostile", explanation=how)
            self.membership.kill(allocation)

    def _look(self) -> None:
        """Everything that drivers are asked for: who holds what, how the cards are."""
        next_read_ns = 0
        while not self._stop.is_set():
            with self._surviving("look"):
                if self._reclaimer is not None:
                    self._reclaimer.tick(self.ledgers.keepings())
                now_ns = self._clock.monotonic_ns()
                if now_ns >= next_read_ns:
                    next_read_ns = now_ns + int(READ_PERIOD_S * 1e9)
                    self._health(self.inventory.observe(now_ns=now_ns, idle=self._idle))
                    self.ledgers.sample(self.book.records(), self.inventory)
                    self._tell()
            self._stop.wait(LOOK_PERIOD_S)

    @contextlib.contextmanager
    def _surviving(self, thread: str) -> Iterator[None]:
        """These threads must outlive every surprise: without them nothing is ever given back."""
        try:
            yield
        except CalabashError as error:
            self._complain(error)
        except Exception:
            log.exception("a thread stumbled and goes on", thread=thread)

    def _wait_events(self, driver: GpuDriver) -> None:
        while not self._stop.is_set():
            try:
                for event in driver.wait_events(EVENT_WAIT_S):
                    self._health(self.inventory.happened(event))
            except CalabashError as error:
                log.debug("no events from the driver", vendor=driver.vendor, error=error.message)
                self._stop.wait(EVENT_WAIT_S)

    def _idle(self, device: DeviceUuid) -> bool:
        with self.lock:
            return not self.book.held_on(device)[0] and not self.book.orphaned(device)

    def _health(self, changes: list[HealthChange]) -> None:
        for change in changes:
            message = f"{change.before} -> {change.after}: {change.cause}"
            self.event("health", reason=change.after, device=change.device, message=message)
            if change.tell:
                with self.lock:
                    records = self.book.records()
                for record in records:
                    if any(part.device == change.device for part in record.placement.slices):
                        self.event(
                            "device_unhealthy",
                            reason="unhealthy",
                            allocation=record.id,
                            device=change.device,
                            message=f"device {change.device} of this allocation is {change.after}: {change.cause}",
                        )
        if any(change.after is Health.HEALTHY for change in changes):
            self._tell()

    def _tell(self) -> None:
        self.changed()
        for changed in self._subscribers:
            changed()

    def _record(self, changes: Changes) -> None:
        for record in changes.started:
            self.event("started", allocation=record.id)
        for record in changes.released:
            self.event("released", reason=record.reason, allocation=record.id, message=record.explanation)
        for failure in changes.failures:
            self._complain(failure)
        if not changes.failures:
            self._failure = ""

    def _complain(self, error: CalabashError) -> None:
        """Once, not ten times a second."""
        if error.message != self._failure:
            self._failure = error.message
            log.error("cannot settle the books; trying on", error=error.message, reason=str(error.reason))

    def _flush_events(self) -> None:
        with contextlib.suppress(CalabashError):
            while self._events:
                self._store.add_event(**self._events[0])
                self._events.popleft()


def _not_held(allocation: str) -> CalabashError:
    return CalabashError(
        f"there is no allocation {allocation!r} held", reason=Reason.NOT_FOUND, hint="see `calabash ps`"
    )


def _reclaimer(inventory: Inventory) -> Reclaimer | None:
    try:
        return Reclaimer(inventory, PageLibrary())
    except CalabashError as error:
        log.warning("capped slices cannot be granted", error=error.message)
        return None


def describe(record: AllocationRecord, devices: Sequence[Device]) -> str:
    """``vgpu: 8192 MiB 30% of device 0``."""
    index = {d.uuid: d.index for d in devices}
    parts = [f"{p.memory_mib} MiB {p.core_percent}% of device {index.get(p.device)}" for p in record.placement.slices]
    return f"{record.placement.mode}: {', '.join(parts)}"
