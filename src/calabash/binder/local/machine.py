"""Scheduler of one machine: converts devices and requests to shapes, and decisions to placements.

``LocalScheduler`` is the ``Scheduler`` for a pool. ``sharing`` decides what a sharing mode admits; here that is only
expressed in the scheduler's terms. Every start is checked by ``sharing`` before it is returned, so that nothing is
started which the mode refuses. The mode's own ``charge`` says how much a slice counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from calabash.binder.local.partitions import Partitions
from calabash.binder.local.unmanaged_memory import UnmanagedMemory
from calabash.binder.shapes import UNMANAGED, node_of, shape_of, shapes_of
from calabash.model.device import Device, DeviceUuid, Health, NodeName
from calabash.model.errors import Reason
from calabash.model.mig import MigInstance
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement
from calabash.sched import (
    DEFAULT_POLICY,
    Bind,
    CycleLimit,
    Decision,
    Defer,
    Evict,
    Explanation,
    Move,
    NodePlacement,
    Options,
    PlacementPolicy,
    QueueSpec,
    Request,
    Scheduler,
    Shape,
    set_mig_instances,
)
from calabash.sharing.foreign import with_unmanaged_memory
from calabash.sharing.protocol import HeldSlice, Misfit
from calabash.sharing.registry import fits, mode_of_device, mode_on

_LIST = re.compile(r"\(([^()]+)\)$")
SETTLE_EVERY_S = 0.05
CYCLE_EVERY_S = 1.0  # effects of time alone, such as the end of a minimum run time, are found this soon


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start the request on these slices, once all allocations in ``after`` are gone; ``because`` explains the choice."""

    id: AllocationId
    placement: Placement
    after: tuple[AllocationId, ...] = ()
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Stop the allocation; it waits in its queue again. ``owed``: its devices were borrowed and are reclaimed."""

    id: AllocationId
    reason: Reason
    by: AllocationId
    owed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The request waits, with the reason."""

    id: AllocationId
    reason: Reason
    explanation: Explanation


LocalDecision = Start | Stop | Wait


class LocalScheduler:
    """A ``Scheduler`` over the devices of one machine.

    Args:
        node: the machine's name.
        devices: its devices; the order is kept.
        queues: the queue tree; requests name its leaves.
        cpu_milli, memory_mib: host resources, if the pool manages them.
        limit: time limit of one cycle; see ``Scheduler``.
    """

    def __init__(
        self,
        node: NodeName,
        devices: Sequence[Device],
        queues: Iterable[QueueSpec],
        *,
        options: Options | None = None,
        policy: str | PlacementPolicy = DEFAULT_POLICY,
        cpu_milli: int = UNMANAGED,
        memory_mib: int = UNMANAGED,
        limit: CycleLimit | None = None,
    ) -> None:
        self.node = node
        self.devices = tuple(devices)
        self._number = {device.uuid: i for i, device in enumerate(self.devices)}
        spec = node_of(node, self.devices, cpu_milli=cpu_milli, memory_mib=memory_mib)
        self.scheduler = Scheduler([spec], queues, policy=policy, options=options, limit=limit)
        self._requests: dict[str, GpuRequest] = {}
        self._slices: dict[AllocationId, Placement] = {}
        self._partitions = Partitions(self.scheduler)
        self._cycle_due_s = 0.0
        for device in self.devices:
            set_mig_instances(self.scheduler, node, self._number[device.uuid], device.mig_instances)
        self.unmanaged_memory = UnmanagedMemory(self.scheduler, self._number)

    def submit(
        self,
        allocation: AllocationId,
        request: GpuRequest,
        *,
        submitted_at_s: float,
        run_time_s: float | None = None,
        owner: str = "",
    ) -> None:
        """Add the request to ``request.queue``. Raises CalabashError: see ``shapes_of``, and unknown queues.

        Args:
            owner: owner of the request: owners take turns, and a gang is of one owner and tenant.
        """
        shapes = shapes_of(request, self.devices)
        with_room = [s for s in shapes if self.scheduler.placer.choose(s) is not None]
        shape = (with_room or sorted(shapes, key=lambda s: -len(s.models)))[0]
        expected_s = run_time_s if run_time_s is not None else request.run_time_s or None
        self.scheduler.submit(_queued(allocation, request, shape, submitted_at_s, run_time_s=expected_s, owner=owner))
        self._requests[allocation] = request
        self._partitions.add(allocation, shape)

    def adopt(
        self,
        allocation: AllocationId,
        request: GpuRequest,
        placement: Placement,
        *,
        started_at_s: float,
        owner: str = "",
    ) -> None:
        """Place a request that runs already, as the journal says.

        Raises CalabashError if the devices have no room for it.
        """
        parts = sorted(placement.slices, key=lambda s: self._number[s.device])
        devices = tuple(self._number[s.device] for s in parts)
        answer = placement.slices[0]
        shape = shape_of(placement.mode, self.devices[devices[0]], answer, request, count=len(devices))
        queued = _queued(allocation, request, shape, started_at_s, run_time_s=request.run_time_s or None, owner=owner)
        places = tuple((s.place,) for s in parts) if shape.mig_profile else ()
        place = NodePlacement(node=0, devices=devices, mig_places=places)
        self.scheduler.adopt(queued, placement=place, started_at_s=started_at_s)
        self._requests[allocation] = request
        self._slices[allocation] = placement

    def finished(self, allocation: AllocationId) -> None:
        """Remove a request that has ended or was cancelled. Does nothing if it is unknown."""
        if self._requests.pop(allocation, None) is None:
            return
        self.scheduler.finished(allocation)
        self._slices.pop(allocation, None)
        self._partitions.remove(allocation)

    def unbind(self, allocation: AllocationId) -> None:
        """Take the devices of a request that could not be started away: it waits again, with its old age."""
        self.scheduler.unbind(allocation)
        self._slices.pop(allocation, None)

    def runs(self, allocation: AllocationId) -> bool:
        """Return True if the request holds devices, as far as the scheduler knows."""
        return allocation in self._slices

    def set_health(self, uuid: DeviceUuid, health: Health) -> None:
        """Set the health of a device. One that is not healthy takes nothing new."""
        device = self._number[uuid]
        self.devices = tuple(replace(d, health=health) if d.uuid == uuid else d for d in self.devices)
        self.scheduler.set_health(self.node, device, healthy=health is Health.HEALTHY)

    def set_mig_instances(self, uuid: DeviceUuid, instances: tuple[MigInstance, ...]) -> None:
        """Set the MIG instances that exist on a device, used or not."""
        self.devices = tuple(replace(d, mig_instances=instances) if d.uuid == uuid else d for d in self.devices)
        set_mig_instances(self.scheduler, self.node, self._number[uuid], instances)

    def set_queues(self, queues: Iterable[QueueSpec]) -> None:
        self.scheduler.set_queues(queues)

    def cycle(self, now_s: float) -> tuple[LocalDecision, ...]:
        """Decide about all requests; see ``Scheduler.cycle``."""
        self._cycle_due_s = now_s + CYCLE_EVERY_S
        self._partitions.announce_waiting(self._slices)
        return self._translated(self.scheduler.cycle(now_s))

    def decide(self, newcomers: Iterable[AllocationId], now_s: float) -> tuple[LocalDecision, ...]:
        """Decide about requests submitted since the last cycle, or about all if a cycle is due."""
        decided: list[LocalDecision] = []
        self._partitions.announce_waiting(self._slices)
        for name in newcomers:
            due_s = self.scheduler.wake_at_s()
            if now_s >= self._cycle_due_s or (due_s is not None and due_s <= now_s):
                return (*decided, *self.cycle(now_s))
            decided.extend(self._translated(self.scheduler.decide(name, now_s)))
        return tuple(decided)

    def _translated(self, decisions: Iterable[Decision]) -> tuple[LocalDecision, ...]:
        decided: list[LocalDecision] = []
        for decision in decisions:
            name = AllocationId(decision.id)
            if isinstance(decision, Bind | Move):
                answer = self._placed(decision)
                if isinstance(answer, Misfit):
                    self.scheduler.unbind(decision.id)
                    reported = Explanation(reason=answer.reason, summary=answer.message)
                    decided.append(Wait(id=name, reason=answer.reason, explanation=reported))
                    continue
                because = self._because(name, answer)
                self._slices[name] = answer
                after = tuple(AllocationId(a) for a in decision.after) if isinstance(decision, Bind) else ()
                decided.append(Start(id=name, placement=answer, after=after, because=because))
            elif isinstance(decision, Evict):
                self._slices.pop(name, None)
                decided.append(Stop(id=name, reason=decision.reason, by=AllocationId(decision.by), owed=decision.owed))
            elif isinstance(decision, Defer):
                reported = readable(decision.explanation, self.devices)
                decided.append(Wait(id=name, reason=reported.reason, explanation=reported))
        return tuple(decided)

    def due_in_s(self, now_s: float) -> float | None:
        """Return after how many seconds a cycle is due without any event; None for never."""
        return due_in_s(self.scheduler, now_s)

    @property
    def unfinished(self) -> bool:
        """True if the last cycle reached its time limit before it decided about all requests."""
        return self.scheduler.unfinished

    def explain_wait(self, allocation: AllocationId, now_s: float) -> Explanation:
        """Return why the request waits. Raises CalabashError if it does not wait."""
        reported = readable(self.scheduler.explain(allocation, now_s), self.devices)
        return replace(reported, changes=(*reported.changes, *self.unmanaged_memory.remedies()))

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _placed(self, decision: Bind | Move) -> Placement | Misfit:
        """Return the slices by the sharing mode's own rule, beside those that are held now."""
        request = self._requests[decision.id]
        chosen = [self.devices[i] for i in decision.placement.devices]
        slices = []
        places = decision.placement.mig_places
        for number, device in enumerate(chosen):
            held_mode, held = self._held(device.uuid, but=decision.id)
            answer = fits(device, held_mode, held, request, place=places[number][0] if places else None)
            if isinstance(answer, Misfit):
                return answer
            slices.append(answer)
        return Placement(node=self.node, mode=mode_on(chosen[0], request).name, slices=tuple(slices))

    def _because(self, name: AllocationId, placement: Placement) -> str:
        """Return where the request goes and why, in one line. Call it before the request holds the devices."""
        request = self._requests[name]
        views = [(d, *self._held(d.uuid, but=name)) for d in self.devices]
        return _reason(request, placement, views, self.scheduler.placer.engine.preference)

    def _held(self, uuid: DeviceUuid, *, but: str) -> tuple[ModeName | None, list[HeldSlice]]:
        mode: ModeName | None = None
        held = []
        for name, placement in self._slices.items():
            for s in placement.slices:
                if s.device == uuid and name != but:
                    mode = mode_of_device(placement.mode)
                    held.append(HeldSlice(slice=s, policy=self._requests[name].policy))
        mode, counted = with_unmanaged_memory(uuid, mode, held, self.unmanaged_memory.memory_mib(uuid))
        return mode, list(counted)


def _reason(
    request: GpuRequest,
    placement: Placement,
    views: Sequence[tuple[Device, ModeName | None, Sequence[HeldSlice]]],
    policy: str,
) -> str:
    """Return the text ``device 1 at 4 (shared with others already): 2 of 4 devices had room, asked 1; policy fgd``."""
    number = {device.uuid: device.index for device, _, _ in views}
    busy = {device.uuid for device, _, held in views if held}
    room = sum(not isinstance(fits(device, mode, held, request), Misfit) for device, mode, held in views)
    places = ", ".join(f"device {number[s.device]}" + (f" at {s.start}" if s.profile else "") for s in placement.slices)
    shared = sum(s.device in busy for s in placement.slices)
    beside = f"{shared} of them shared with others already" if shared else "idle before"
    if len(placement.slices) == 1:
        beside = "shared with others already" if shared else "idle before"
    choice = "there was no other" if room == len(placement.slices) else f"policy {policy}"
    return f"{places} ({beside}): {room} of {len(views)} devices had room, asked {request.count}; {choice}"


def due_in_s(scheduler: Scheduler, now_s: float) -> float | None:
    """Return in how many seconds everything is to be looked at again, though nothing happens; None if never.

    At once where the last cycle has not come to everything. Otherwise not before ``SETTLE_EVERY_S``: a decision that its
    sharing mode refuses is taken back, and the scheduler may take it again each time.
    """
    if scheduler.unfinished:
        return 0.0
    wake_at_s = scheduler.wake_at_s()
    return None if wake_at_s is None else max(SETTLE_EVERY_S, wake_at_s - now_s)


def readable(reported: Explanation, devices: Sequence[Device]) -> Explanation:
    """Return the explanation with model names instead of device UUIDs, which stand for models here."""
    names = {d.uuid: d.model for d in devices}

    def plain(text: str) -> str:
        for uuid, model in names.items():
            text = text.replace(uuid, model)
        return _LIST.sub(lambda found: f"({', '.join(dict.fromkeys(found[1].split(', ')))})", text)

    causes = tuple(replace(c, text=plain(c.text)) for c in reported.causes)
    return replace(
        reported, summary=plain(reported.summary), causes=causes, changes=tuple(plain(c) for c in reported.changes)
    )


def _queued(
    allocation: AllocationId,
    request: GpuRequest,
    shape: Shape,
    submitted_at_s: float,
    *,
    run_time_s: float | None,
    owner: str,
) -> Request:
    return Request(
        id=allocation,
        shape=shape,
        queue=request.queue,
        priority=request.priority,
        run_time_s=run_time_s,
        tenant=request.tenant,
        submitted_at_s=submitted_at_s,
        owner=owner,
        gang=request.gang,
        min_member=request.gang_size if request.gang else 1,
        movable=False,
    )
