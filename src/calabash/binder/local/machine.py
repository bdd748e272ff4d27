"""Scheduler of one machine: converts devices and requests to shapes, and decisions to placements.

``LocalScheduler`` is the ``Scheduler`` for a pool. Package ``sharing`` decides which slices a sharing mode admits; this
module only expresses its rules in the scheduler's terms. ``sharing`` checks every start before it is returned, so that
no start is made which the mode refuses. The method ``charge`` of a mode says how much of a device a slice occupies.
"""

from __future__ import annotations

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
from calabash.sharing.registry import RequestModes, mode_named, mode_of_device, resolve

SETTLE_EVERY_S = 0.05
CYCLE_EVERY_S = 1.0  # effects of time alone, such as the end of a minimum run time, are found this soon


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Decision to start a request once all allocations in ``after`` have ended; ``because`` explains the placement."""

    id: AllocationId
    placement: Placement
    after: tuple[AllocationId, ...] = ()
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Decision to stop an allocation, whose request then waits in its queue again.

    Args:
        by: the request that needs its devices.
        owed: True if the devices were borrowed from the queue of ``by`` and are reclaimed.
    """

    id: AllocationId
    reason: Reason
    by: AllocationId
    owed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Decision that a request has to wait, with the reason."""

    id: AllocationId
    reason: Reason
    explanation: Explanation


LocalDecision = Start | Stop | Wait


class LocalScheduler:
    """A ``Scheduler`` over the devices of one machine.

    Args:
        node: the machine's name.
        devices: its devices; their order determines the device indexes in the scheduler.
        queues: the queue tree; requests name its leaves.
        policy: placement policy, or its name.
        cpu_milli, memory_mib: host CPUs (in 1/1000) and host memory; UNMANAGED if the pool does not limit them.
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
        self._requests: dict[str, RequestModes] = {}
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
        """Add the request to ``request.queue``. Raises CalabashError for unknown queues, and as ``resolve`` and ``shapes_of``.

        Args:
            submitted_at_s: submission time on the monotonic clock, from which its age counts.
            run_time_s: expected run time; None: the one that the request states, if any.
            owner: the scheduler alternates between owners of a queue; all members of a gang have the same owner and
                tenant.
        """
        wanted = resolve(request)
        shapes = shapes_of(wanted, self.devices)
        with_room = [s for s in shapes if self.scheduler.placer.choose(s) is not None]
        shape = (with_room or sorted(shapes, key=lambda s: -len(s.models)))[0]
        expected_s = run_time_s if run_time_s is not None else request.run_time_s or None
        self.scheduler.submit(_queued(allocation, request, shape, submitted_at_s, run_time_s=expected_s, owner=owner))
        self._requests[allocation] = wanted
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
        """Restore the placement of a request that runs already, without a decision, for example after a restart.

        Raises CalabashError if the devices have too little free capacity for the request.
        """
        parts = sorted(placement.slices, key=lambda s: self._number[s.device])
        devices = tuple(self._number[s.device] for s in parts)
        answer = placement.slices[0]
        shape = shape_of(mode_named(placement.mode), self.devices[devices[0]], answer, request, count=len(devices))
        queued = _queued(allocation, request, shape, started_at_s, run_time_s=request.run_time_s or None, owner=owner)
        places = tuple((s.place,) for s in parts) if shape.mig_profile else ()
        place = NodePlacement(node=0, devices=devices, mig_places=places)
        self.scheduler.adopt(queued, placement=place, started_at_s=started_at_s)
        self._requests[allocation] = resolve(request)
        self._slices[allocation] = placement

    def finished(self, allocation: AllocationId) -> None:
        """Remove a request that has ended or was cancelled. Does nothing if it is unknown."""
        if self._requests.pop(allocation, None) is None:
            return
        self.scheduler.finished(allocation)
        self._slices.pop(allocation, None)
        self._partitions.remove(allocation)

    def unbind(self, allocation: AllocationId) -> None:
        """Release the devices of a request that could not be started. The request waits again and keeps its age."""
        self.scheduler.unbind(allocation)
        self._slices.pop(allocation, None)

    def runs(self, allocation: AllocationId) -> bool:
        """Return True if the scheduler has given devices to the request."""
        return allocation in self._slices

    def set_health(self, uuid: DeviceUuid, health: Health) -> None:
        """Set the health of a device. A device that is not healthy gets no new allocations."""
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
        """Decide about ``newcomers`` (requests submitted since the last cycle), or about all if a cycle is due."""
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
        """Return in how many seconds a cycle is due without any event; None if a cycle is due only after an event."""
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
        """Return the placement on the chosen devices, or the reason why the sharing mode refuses a slice there.

        The slices that other allocations hold on the devices now are taken into account.
        """
        wanted = self._requests[decision.id]
        chosen = [self.devices[i] for i in decision.placement.devices]
        slices, modes = [], [wanted.on(device) for device in chosen]
        places = decision.placement.mig_places
        for number, (device, mode) in enumerate(zip(chosen, modes, strict=True)):
            held_mode, held = self._held(device.uuid, but=decision.id)
            place = places[number][0] if places else None
            answer = wanted.fits(device, held_mode, held, mode=mode, place=place)
            if isinstance(answer, Misfit):
                return answer
            slices.append(answer)
        return Placement(node=self.node, mode=modes[0].name, slices=tuple(slices))

    def _because(self, name: AllocationId, placement: Placement) -> str:
        """Return a text about the devices of a placement and their choice. The placement must not be stored yet."""
        wanted = self._requests[name]
        views = [(d, *self._held(d.uuid, but=name)) for d in self.devices]
        return _reason(wanted, placement, views, self.scheduler.placer.engine.preference)

    def _held(self, uuid: DeviceUuid, *, but: str) -> tuple[ModeName | None, list[HeldSlice]]:
        mode: ModeName | None = None
        held = []
        for name, placement in self._slices.items():
            for s in placement.slices:
                if s.device == uuid and name != but:
                    mode = mode_of_device(placement.mode)
                    held.append(HeldSlice(slice=s, policy=self._requests[name].request.policy))
        mode, counted = with_unmanaged_memory(uuid, mode, held, self.unmanaged_memory.memory_mib(uuid))
        return mode, list(counted)


def _reason(
    wanted: RequestModes,
    placement: Placement,
    views: Sequence[tuple[Device, ModeName | None, Sequence[HeldSlice]]],
    policy: str,
) -> str:
    """Return the explanation of a placement for users.

    Example: ``device 1 at 4 (shared with others already): 2 of 4 devices had room, asked 1; policy fgd``.

    Args:
        views: every device of the machine with its mode and its held slices.
        policy: name of the placement policy.
    """
    number = {device.uuid: device.index for device, _, _ in views}
    busy = {device.uuid for device, _, held in views if held}
    room = sum(not isinstance(wanted.fits(device, mode, held), Misfit) for device, mode, held in views)
    places = ", ".join(f"device {number[s.device]}" + (f" at {s.start}" if s.profile else "") for s in placement.slices)
    shared = sum(s.device in busy for s in placement.slices)
    beside = f"{shared} of them shared with others already" if shared else "idle before"
    if len(placement.slices) == 1:
        beside = "shared with others already" if shared else "idle before"
    choice = "there was no other" if room == len(placement.slices) else f"policy {policy}"
    return f"{places} ({beside}): {room} of {len(views)} devices had room, asked {wanted.request.count}; {choice}"


def due_in_s(scheduler: Scheduler, now_s: float) -> float | None:
    """Return in how many seconds a cycle is due without any event; None if a cycle is due only after an event.

    0 if the last cycle reached its time limit. Otherwise at least ``SETTLE_EVERY_S``, because a decision that a sharing
    mode refuses is undone and the scheduler may repeat it in each cycle.
    """
    if scheduler.unfinished:
        return 0.0
    wake_at_s = scheduler.wake_at_s()
    return None if wake_at_s is None else max(SETTLE_EVERY_S, wake_at_s - now_s)


def readable(reported: Explanation, devices: Sequence[Device]) -> Explanation:
    """Return the explanation with model names instead of device UUIDs.

    The scheduler names UUIDs as models, because each device is a model of its own here; see ``shapes``.
    """
    models: dict[str, str] = {d.uuid: d.model for d in devices}
    return reported.with_models(lambda name: models.get(name.value, name.value))


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
