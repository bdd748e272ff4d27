"""One machine as a cluster of one node: from devices and ``GpuRequest`` to shapes, and from decisions to placements.

``LocalScheduler`` is the ``Scheduler`` for a pool that thinks in model nouns. What a sharing mode admits is decided by
``sharing``; here it is only expressed in the scheduler's terms, and every bind is checked against ``sharing`` before
it is told, so that nothing is ever bound that the mode refuses. How much a slice counts is the mode's own ``charge``.

A device is its own "model" here (its UUID), so that any selector becomes an exact set of devices. A vgpu request
without a memory amount gets the same fraction of the memory as of the compute; with cards of several sizes it
is tied to the size on which it fits best when it is submitted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from calabash.model.device import Device, DeviceUuid, Health, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement, Slice
from calabash.sched.cluster import GpuSpec, NodeSpec
from calabash.sched.decisions import Ask, Bind, Evict, Explanation, Move, Options, Pending
from calabash.sched.policies.protocol import Policy
from calabash.sched.queues import QueueSpec
from calabash.sched.scheduler import DEFAULT_POLICY, Scheduler
from calabash.sched.shape import NodePlacement, Shape
from calabash.sharing.protocol import HeldSlice, Misfit
from calabash.sharing.registry import fits, mode_for, mode_named, selected

_LIST = re.compile(r"\(([^()]+)\)$")
UNMANAGED = 10**9  # host resources where the pool does not manage them: a million vCPU, a pebibyte


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start it on these slices, once everything in ``after`` is gone."""

    id: AllocationId
    placement: Placement
    after: tuple[AllocationId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Stop it; it waits in its queue again."""

    id: AllocationId
    reason: Reason
    by: AllocationId


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """It waits, and why."""

    id: AllocationId
    reason: Reason
    explanation: Explanation


LocalDecision = Start | Stop | Wait


def islands_of(devices: Sequence[Device]) -> list[int]:
    """NVLink islands: devices that reach each other, directly or through others; -1 for a device without peers."""
    number = {device.uuid: i for i, device in enumerate(devices)}
    island = list(range(len(devices)))

    def root(i: int) -> int:
        while island[i] != i:
            i = island[i]
        return i

    for i, device in enumerate(devices):
        for peer in device.nvlink_peers:
            if peer in number:
                island[max(root(i), root(number[peer]))] = min(root(i), root(number[peer]))
    return [root(i) if device.nvlink_peers else -1 for i, device in enumerate(devices)]


def node_of(name: NodeName, devices: Sequence[Device], *, cpu_milli: int = 0, memory_mib: int = 0) -> NodeSpec:
    """The machine with everything free."""
    specs = [
        GpuSpec(
            model=device.uuid,
            memory_mib=device.memory_mib,
            island=island,
            numa=device.numa_node,
            healthy=device.health is Health.HEALTHY,
        )
        for device, island in zip(devices, islands_of(devices), strict=True)
    ]
    return NodeSpec(name=name, cpu_milli=cpu_milli, memory_mib=memory_mib, gpus=tuple(specs))


def shapes_of(request: GpuRequest, devices: Sequence[Device]) -> list[Shape]:
    """The shapes that would serve the request: one, or one per card size when the memory follows the card.

    Raises CalabashError: unknown mode, no mode that isolates enough, no device selected, too large for every device.
    """
    mode = mode_for(request).name
    chosen = [d for d in devices if selected(d, request.selector) is None]
    fitting, misfits = [], []
    for device in chosen:
        answer = fits(replace(device, health=Health.HEALTHY), None, (), request)
        if isinstance(answer, Misfit):
            misfits.append(answer)
        else:
            fitting.append((device, answer))
    if not chosen or len(fitting) < request.count:
        raise _impossible(request, devices, chosen, misfits)
    sizes: dict[tuple[int, int], list[DeviceUuid]] = {}
    for device, answer in fitting:
        sizes.setdefault(_amounts(mode, answer, request), []).append(device.uuid)
    shapes = [
        Shape(
            gpu_count=request.count,
            gpu_milli=milli,
            gpu_memory_mib=memory_mib,
            models=frozenset(uuids) if len(uuids) < len(devices) else frozenset(),
            mode=mode,
            cpu_milli=request.cpu_milli,
            memory_mib=request.host_memory_mib,
        )
        for (milli, memory_mib), uuids in sizes.items()
        if len(uuids) >= request.count
    ]
    if not shapes:
        raise _impossible(request, devices, chosen, misfits)
    return shapes


def _amounts(mode: ModeName, slice_: Slice, request: GpuRequest) -> tuple[int, int]:
    """(milli, MiB) per device in the scheduler's terms."""
    charge = mode_named(mode).charge(slice_, request.policy)
    return charge.core_milli, charge.memory_mib


def _impossible(
    request: GpuRequest, devices: Sequence[Device], chosen: Sequence[Device], misfits: Sequence[Misfit]
) -> CalabashError:
    if not devices:
        return CalabashError("the machine has no devices", reason=Reason.NO_DEVICES, hint="check calabash doctor")
    if not chosen:
        return CalabashError(
            f"none of {len(devices)} devices is selected", reason=Reason.SELECTOR_MISMATCH, hint="relax the selector"
        )
    if misfits:
        return CalabashError(misfits[0].message, reason=misfits[0].reason, hint="ask for less per device")
    return CalabashError(
        f"asked {request.count} devices, the machine has {len(chosen)} that match",
        reason=Reason.TOO_LARGE,
        hint=f"ask for at most {len(chosen)}",
    )


class LocalScheduler:
    """A ``Scheduler`` over the devices of one machine, in model nouns.

    Args:
        node: the machine's name.
        devices: its devices; the order is kept.
        queues: the queue tree; requests name its leaves.
        cpu_milli, memory_mib: host resources, where the pool manages them.
    """

    def __init__(
        self,
        node: NodeName,
        devices: Sequence[Device],
        queues: Iterable[QueueSpec],
        *,
        options: Options | None = None,
        policy: str | Policy = DEFAULT_POLICY,
        cpu_milli: int = UNMANAGED,
        memory_mib: int = UNMANAGED,
    ) -> None:
        self.node = node
        self.devices = tuple(devices)
        self._number = {device.uuid: i for i, device in enumerate(self.devices)}
        spec = node_of(node, self.devices, cpu_milli=cpu_milli, memory_mib=memory_mib)
        self.scheduler = Scheduler([spec], queues, policy=policy, options=options)
        self._requests: dict[str, GpuRequest] = {}
        self._slices: dict[str, Placement] = {}

    def submit(
        self, allocation: AllocationId, request: GpuRequest, *, submitted_at_s: float, run_time_s: float | None = None
    ) -> None:
        """Join the line of ``request.queue``. Raises CalabashError: see ``shapes_of``, and unknown queues."""
        shapes = shapes_of(request, self.devices)
        with_room = [s for s in shapes if self.scheduler.room.choose(s) is not None]
        shape = (with_room or sorted(shapes, key=lambda s: -len(s.models)))[0]
        expected_s = run_time_s if run_time_s is not None else request.run_time_s or None
        self.scheduler.submit(self._ask(allocation, request, shape, submitted_at_s, run_time_s=expected_s))
        self._requests[allocation] = request

    def adopt(
        self, allocation: AllocationId, request: GpuRequest, placement: Placement, *, started_at_s: float
    ) -> None:
        """It runs already, as the journal says. Raises CalabashError when the devices have no such room."""
        devices = tuple(sorted(self._number[s.device] for s in placement.slices))
        answer = placement.slices[0]
        milli, memory_mib = _amounts(placement.mode, answer, request)
        shape = Shape(
            gpu_count=len(devices),
            gpu_milli=milli,
            gpu_memory_mib=memory_mib,
            mode=placement.mode,
            cpu_milli=request.cpu_milli,
            memory_mib=request.host_memory_mib,
        )
        ask = self._ask(allocation, request, shape, started_at_s, run_time_s=request.run_time_s or None)
        self.scheduler.adopt(ask, placement=NodePlacement(node=0, devices=devices), started_at_s=started_at_s)
        self._requests[allocation] = request
        self._slices[allocation] = placement

    def finished(self, allocation: AllocationId) -> None:
        """It ended, or was cancelled while it waited."""
        self.scheduler.finished(allocation)
        self._requests.pop(allocation, None)
        self._slices.pop(allocation, None)

    def set_health(self, uuid: DeviceUuid, health: Health) -> None:
        """A device that is not healthy takes nothing new."""
        device = self._number[uuid]
        self.devices = tuple(replace(d, health=health) if d.uuid == uuid else d for d in self.devices)
        self.scheduler.cluster.set_health(0, device, healthy=health is Health.HEALTHY)

    def set_queues(self, queues: Iterable[QueueSpec]) -> None:
        self.scheduler.set_queues(queues)

    def cycle(self, now_s: float) -> tuple[LocalDecision, ...]:
        """Decide; see ``Scheduler.cycle``."""
        decided: list[LocalDecision] = []
        for decision in self.scheduler.cycle(now_s):
            name = AllocationId(decision.id)
            if isinstance(decision, Bind | Move):
                answer = self._placed(decision)
                if isinstance(answer, Misfit):
                    self.scheduler.unbind(decision.id)
                    told = Explanation(reason=answer.reason, summary=answer.message)
                    decided.append(Wait(id=name, reason=answer.reason, explanation=told))
                    continue
                self._slices[name] = answer
                after = decision.after if isinstance(decision, Bind) else ()
                decided.append(Start(id=name, placement=answer, after=tuple(AllocationId(a) for a in after)))
            elif isinstance(decision, Evict):
                self._slices.pop(name, None)
                decided.append(Stop(id=name, reason=decision.reason, by=AllocationId(decision.by)))
            elif isinstance(decision, Pending):
                told = self._readable(decision.explanation)
                decided.append(Wait(id=name, reason=told.reason, explanation=told))
        return tuple(decided)

    def why(self, allocation: AllocationId, now_s: float) -> Explanation:
        """Why it waits. Raises CalabashError when it does not wait."""
        return self._readable(self.scheduler.why(allocation, now_s))

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _ask(
        self,
        allocation: AllocationId,
        request: GpuRequest,
        shape: Shape,
        submitted_at_s: float,
        *,
        run_time_s: float | None,
    ) -> Ask:
        return Ask(
            id=allocation,
            shape=shape,
            queue=request.queue,
            priority=request.priority,
            run_time_s=run_time_s,
            tenant=request.tenant,
            submitted_at_s=submitted_at_s,
            gang=request.gang,
            min_member=request.gang_size if request.gang else 1,
            movable=False,
        )

    def _placed(self, decision: Bind | Move) -> Placement | Misfit:
        """The slices by the sharing mode's own rule, beside what it holds now."""
        request = self._requests[decision.id]
        mode = mode_for(request).name
        slices = []
        for device in (self.devices[i] for i in decision.placement.devices):
            held_mode, held = self._held(device.uuid, but=decision.id)
            answer = fits(device, held_mode, held, request)
            if isinstance(answer, Misfit):
                return answer
            slices.append(answer)
        return Placement(node=self.node, mode=mode, slices=tuple(slices))

    def _held(self, uuid: DeviceUuid, *, but: str) -> tuple[ModeName | None, list[HeldSlice]]:
        mode: ModeName | None = None
        held = []
        for name, placement in self._slices.items():
            for s in placement.slices:
                if s.device == uuid and name != but:
                    mode = placement.mode
                    held.append(HeldSlice(slice=s, policy=self._requests[name].policy))
        return mode, held

    def _readable(self, told: Explanation) -> Explanation:
        """Device UUIDs, which stand for models here, as the models that people know."""
        names = {d.uuid: d.model for d in self.devices}

        def plain(text: str) -> str:
            for uuid, model in names.items():
                text = text.replace(uuid, model)
            return _LIST.sub(lambda found: f"({', '.join(dict.fromkeys(found[1].split(', ')))})", text)

        causes = tuple(replace(c, text=plain(c.text)) for c in told.causes)
        return replace(told, summary=plain(told.summary), causes=causes, changes=tuple(plain(c) for c in told.changes))
