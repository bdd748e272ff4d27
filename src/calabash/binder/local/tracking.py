"""What the scheduler is told: devices and their health, who runs, who stands in the queue order.

The scheduler thinks in the monotonic clock and in the devices of one moment; journal and agent in the calendar and in
what is there now. ``Tracker`` keeps the first true to the second. When a device's figures become known only later, the
scheduler is built anew from what is held and who waits, each with the place it had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from calabash.adapters.clock import Clock
from calabash.binder.local.machine import LocalDecision, LocalScheduler
from calabash.binder.local.requests import WaitingRequest
from calabash.binder.local.unmanaged_memory import Foreign
from calabash.binder.shapes import host_memory_of
from calabash.model.allocation import AllocationRecord
from calabash.model.device import Device, DeviceUuid, Health, NodeName
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId
from calabash.sched import CycleLimit, Options, QueueSpec

NOTHING_FOREIGN: Mapping[DeviceUuid, Foreign] = {}

log = structlog.get_logger(__name__)


class Tracker:
    """The scheduler of this machine and what it has been told; the caller holds a lock.

    Args:
        queues: the queue tree as it is now.
        limit: how long one cycle may take; None: as long as it needs.
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
        self._foreign: Mapping[DeviceUuid, Foreign] = NOTHING_FOREIGN
        self._running: set[AllocationId] = set()
        self._submitted: dict[AllocationId, tuple[WaitingRequest, float]] = {}
        self._newcomers: dict[AllocationId, None] = {}  # submitted since decisions were taken last
        self.scheduler = self._build(devices, held)

    def now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    def submit(self, waiting: WaitingRequest, *, since_s: float | None = None) -> None:
        """It joins the queue order, now or as if it had then. Raises CalabashError when it can never be granted."""
        since_s = self.now_s() if since_s is None else since_s
        self._submit(self.scheduler, waiting, since_s)
        self._submitted[waiting.id] = (waiting, since_s)
        self._newcomers[waiting.id] = None

    def submitted_at_s(self, allocation: AllocationId) -> float | None:
        """When it joined the queue order; None where it does not stand there."""
        found = self._submitted.get(allocation)
        return None if found is None else found[1]

    def gone(self, allocation: AllocationId) -> None:
        """It leaves the queue order, or its place."""
        self._submitted.pop(allocation, None)
        self._newcomers.pop(allocation, None)
        self._running.discard(allocation)
        self.scheduler.finished(allocation)

    def unbind(self, allocation: AllocationId) -> None:
        """Its binding could not be carried out: it waits again where it stood."""
        self.scheduler.unbind(allocation)

    def started(self, record: AllocationRecord) -> None:
        """It holds its devices."""
        self._submitted.pop(record.id, None)
        if not self.scheduler.runs(record.id):  # the scheduler was built anew while the grant was made
            self.scheduler.finished(record.id)
            self._adopt(self.scheduler, record)
        self._running.add(record.id)

    def decide(self) -> tuple[LocalDecision, ...]:
        """Decide about newcomers where nothing else has changed, else everything that can be decided now."""
        newcomers, self._newcomers = self._newcomers, {}
        if newcomers:
            return self.scheduler.decide(newcomers, self.now_s())
        return self.scheduler.cycle(self.now_s())

    def follow(
        self,
        devices: Sequence[Device],
        held: Callable[[], Sequence[AllocationRecord]],
        *,
        foreign: Mapping[DeviceUuid, Foreign] = NOTHING_FOREIGN,
    ) -> bool:
        """Take over health and what has ended; False when the scheduler had to be built anew and no decision holds.

        Args:
            held: what is held now; asked after the devices.
            foreign: what processes without a slice hold of the devices.
        """
        known = {d.uuid: d for d in self.scheduler.devices}
        if any(_figures(known.get(d.uuid)) != _figures(d) for d in devices):
            self.scheduler = self._build(devices, held())  # a card that was lost when the pool started has been seen
            return False
        for device in devices:
            if known[device.uuid].mig_instances != device.mig_instances:
                self.scheduler.set_mig_instances(device.uuid, device.mig_instances)
            if self._health.get(device.uuid) is not device.health:
                self.scheduler.set_health(device.uuid, device.health)
                self._health[device.uuid] = device.health
        if self._running:
            for allocation in self._running - {r.id for r in held()}:
                self._running.discard(allocation)
                self.scheduler.finished(allocation)
        if foreign != self._foreign or not self.scheduler.foreign.is_counted():
            self._foreign = dict(foreign)
            self.scheduler.foreign.set(self._foreign)
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
        self._foreign = NOTHING_FOREIGN
        self._running = set()
        for record in held:
            if self._adopt(scheduler, record) and record.id not in self._submitted:  # else it is just being granted
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
            # Its devices or its queue are gone. It runs on; grants are checked against the agent's books as well.
            log.warning("the scheduler does not know this allocation", allocation=record.id, error=str(error))
            return False
        return True

    def _submit(self, scheduler: LocalScheduler, waiting: WaitingRequest, submitted_at_s: float) -> None:
        owner = str(waiting.requester.uid)
        scheduler.submit(waiting.id, waiting.request, submitted_at_s=submitted_at_s, owner=owner)


def _figures(device: Device | None) -> object:
    """What the scheduler is built on."""
    return device and (device.memory_mib, device.mig, device.pinned, device.spill_mib, device.replicas)
