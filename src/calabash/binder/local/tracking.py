"""State of the machine's scheduler: devices and their health, running allocations, and the queue order.

The scheduler uses the monotonic clock, and the devices as they were when it was built. Journal and agent use the system
clock and the present devices. ``Tracker`` converts between them. When the memory or another fixed property of a device
changes, the scheduler is rebuilt from the held allocations and the waiting requests, which keep their ages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from calabash.adapters.clock import Clock
from calabash.binder.local.machine import LocalDecision, LocalScheduler
from calabash.binder.local.requests import WaitingRequest
from calabash.binder.local.unmanaged_memory import UnmanagedDeviceMemory
from calabash.binder.shapes import host_memory_of
from calabash.model.allocation import AllocationRecord
from calabash.model.device import Device, DeviceUuid, Health, NodeName
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId
from calabash.sched import CycleLimit, Options, QueueSpec

NO_UNMANAGED_MEMORY: Mapping[DeviceUuid, UnmanagedDeviceMemory] = {}

log = structlog.get_logger(__name__)


class Tracker:
    """The machine's scheduler, and the requests and devices that were passed to it. The caller holds a lock.

    Args:
        held: allocations that are held when the tracker is created.
        queues: returns the current queue tree.
        limit: time limit of one cycle; None: unlimited.
    """

    def __init__(
        self,
        node: NodeName,
        devices: Sequence[Device],
        held: Iterable[AllocationRecord],
        *,
        queues: Callable[[], list[QueueSpec]],
        options: Options,
        clock: Clock,
        limit: CycleLimit | None = None,
    ) -> None:
        self._limit = limit
        self._node = node
        self._queues = queues
        self._options = options
        self._clock = clock
        self._health: dict[DeviceUuid, Health] = {}
        self._foreign: Mapping[DeviceUuid, UnmanagedDeviceMemory] = NO_UNMANAGED_MEMORY
        self._running: set[AllocationId] = set()
        self._submitted: dict[AllocationId, tuple[WaitingRequest, float]] = {}
        self._newcomers: dict[AllocationId, None] = {}  # submitted since the last decision
        self.scheduler = self._build(devices, held)
        self.scheduler.scheduler.restore_past_use({}, self.now_s())

    def now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    def count_use(self) -> None:
        """Count the use of the queues until now as past use; called before the use of a queue changes."""
        self.scheduler.scheduler.count_use(self.now_s())

    def submit(self, waiting: WaitingRequest, *, since_s: float | None = None) -> None:
        """Add a request to the queue order. Its age counts from ``since_s`` on the monotonic clock; None: from now.

        Raises CalabashError if it can never be granted.
        """
        since_s = self.now_s() if since_s is None else since_s
        self._submit(self.scheduler, waiting, since_s)
        self._submitted[waiting.id] = (waiting, since_s)
        self._newcomers[waiting.id] = None

    def submitted_at_s(self, allocation: AllocationId) -> float | None:
        """Return when the request joined the queue order, on the monotonic clock; None if it is not in it."""
        found = self._submitted.get(allocation)
        return None if found is None else found[1]

    def remove(self, allocation: AllocationId) -> None:
        """Remove a request from the queue order; if it has devices in the scheduler, these become free."""
        self._submitted.pop(allocation, None)
        self._newcomers.pop(allocation, None)
        self._running.discard(allocation)
        self.count_use()
        self.scheduler.finished(allocation)

    def unbind(self, allocation: AllocationId) -> None:
        """Release the devices of a request that could not be granted. The request waits again and keeps its age."""
        self.count_use()
        self.scheduler.unbind(allocation)

    def set_running(self, record: AllocationRecord) -> None:
        """Note that a request was granted, so that the scheduler counts its devices as held."""
        self._submitted.pop(record.id, None)
        if not self.scheduler.runs(record.id):  # the scheduler was rebuilt during the grant
            self.count_use()
            self.scheduler.finished(record.id)
            self._adopt(self.scheduler, record)
        self._running.add(record.id)

    def decide(self) -> tuple[LocalDecision, ...]:
        """Decide about the requests submitted since the last call; if there are none, about all requests."""
        newcomers, self._newcomers = self._newcomers, {}
        if newcomers:
            return self.scheduler.decide(newcomers, self.now_s())
        return self.scheduler.cycle(self.now_s())

    def update_devices(
        self,
        devices: Sequence[Device],
        held: Callable[[], Sequence[AllocationRecord]],
        *,
        foreign: Mapping[DeviceUuid, UnmanagedDeviceMemory] = NO_UNMANAGED_MEMORY,
    ) -> bool:
        """Update the scheduler: health, MIG instances and unmanaged memory of devices, and allocations that have ended.

        Returns False if the scheduler was rebuilt: earlier decisions are void.

        Args:
            held: returns the allocations that are held now; called after the devices were read.
            foreign: unmanaged memory by device.
        """
        known = {d.uuid: d for d in self.scheduler.devices}
        if any(_figures(known.get(d.uuid)) != _figures(d) for d in devices):
            self.count_use()
            past = dict(self.scheduler.scheduler.tree.past())
            self.scheduler = self._build(devices, held())  # a device lost at the pool's start is back
            self.scheduler.scheduler.restore_past_use(past, self.now_s())
            return False
        for device in devices:
            if known[device.uuid].mig_instances != device.mig_instances:
                self.scheduler.set_mig_instances(device.uuid, device.mig_instances)
            if self._health.get(device.uuid) is not device.health:
                self.scheduler.set_health(device.uuid, device.health)
                self._health[device.uuid] = device.health
        if self._running:
            self.count_use()
            for allocation in self._running - {r.id for r in held()}:
                self._running.discard(allocation)
                self.scheduler.finished(allocation)
        if foreign != self._foreign or not self.scheduler.unmanaged_memory.is_counted():
            self._foreign = dict(foreign)
            self.scheduler.unmanaged_memory.set(self._foreign)
        return True

    def _build(self, devices: Sequence[Device], held: Iterable[AllocationRecord]) -> LocalScheduler:
        scheduler = LocalScheduler(
            self._node,
            devices,
            self._queues(),
            options=self._options,
            memory_mib=host_memory_of(devices),
            limit=self._limit,
        )
        self._health = {d.uuid: d.health for d in devices}
        self._foreign = NO_UNMANAGED_MEMORY
        self._running = set()
        for record in held:
            if self._adopt(scheduler, record) and record.id not in self._submitted:  # else it is being granted
                self._running.add(record.id)
        for waiting, submitted_at_s in list(self._submitted.values()):
            if scheduler.runs(waiting.id):
                continue
            try:
                self._submit(scheduler, waiting, submitted_at_s)
            except CalabashError as error:
                del self._submitted[waiting.id]
                self._newcomers.pop(waiting.id, None)
                waiting.resolve(error)
        return scheduler

    def _adopt(self, scheduler: LocalScheduler, record: AllocationRecord) -> bool:
        started_at_s = record.granted_at - self._clock.now_s() + self.now_s()
        try:
            scheduler.adopt(
                record.id, record.request, record.placement, started_at_s=started_at_s, owner=str(record.uid)
            )
        except (CalabashError, KeyError) as error:
            # Its devices or its queue are gone. It keeps running; the agent checks grants against its own records as well.
            log.warning("the scheduler does not know this allocation", allocation=record.id, error=str(error))
            return False
        return True

    def _submit(self, scheduler: LocalScheduler, waiting: WaitingRequest, submitted_at_s: float) -> None:
        owner = str(waiting.requester.uid)
        scheduler.submit(waiting.id, waiting.request, submitted_at_s=submitted_at_s, owner=owner)


def _figures(device: Device | None) -> object:
    """Return the fixed properties of a device; if one of them changes, the scheduler is rebuilt."""
    return device and (device.memory_mib, device.mig, device.pinned, device.spill_mib, device.replicas)
