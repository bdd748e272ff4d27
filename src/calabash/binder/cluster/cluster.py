"""Scheduler of a cluster of many nodes, for requests of several parts.

``ClusterScheduler`` is the ``Scheduler`` for the planner. Devices are grouped into kinds (``device_kinds``); a bundle
becomes one shape (``bundle``). Before a start is returned, package ``sharing`` checks it against the slices that are
held (``tenancy``), so that no start is planned which a sharing mode refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

from calabash.binder.cluster.bundle import Bundle, placed, resolve_bundle
from calabash.binder.cluster.device_kinds import Choice, DeviceKinds, NodeDevice, PlacementConstraints
from calabash.binder.cluster.nodes import ClusterNode, same_devices, spec_of
from calabash.binder.cluster.occupied import ClusterUnmanagedMemory
from calabash.binder.cluster.places import choice_text, place_of
from calabash.binder.cluster.tenancy import HeldSlices
from calabash.binder.local.machine import CYCLE_EVERY_S, Stop, Wait, due_in_s
from calabash.binder.local.partitions import Partitions
from calabash.model.device import Health, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId, Placement
from calabash.sched import (
    DEFAULT_POLICY,
    Bind,
    CycleLimit,
    Decision,
    Defer,
    Evict,
    Explanation,
    GangTopology,
    Move,
    Options,
    PlacementPolicy,
    QueueSpec,
    Request,
    Scheduler,
    relabel,
    set_mig_instances,
)
from calabash.sharing.protocol import Misfit

GPUS_PER_NODE_MAX = 16
ANYWHERE = PlacementConstraints()


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleRequest:
    """A bundle with all data that determine where and when it starts.

    Args:
        submitted_at_s: submission time, from which its age counts.
        owner: the scheduler alternates between owners of a queue; all members of a gang have the same owner and tenant.
        evictable: True if the bundle may be evicted in favor of other requests.
        guarded: True to forbid eviction while it is within the guaranteed amount of its queue; see ``sched.Request``.
        movable: True if it may be stopped and started again on other devices; see ``moves.set_movable``.
        topology, rank: see ``sched.Request``.
    """

    id: AllocationId
    bundle: Bundle
    constraints: PlacementConstraints = ANYWHERE
    submitted_at_s: float
    owner: str = ""
    evictable: bool = True
    guarded: bool = False
    movable: bool = False
    topology: GangTopology | None = None
    rank: int | None = None

    @property
    def domain_bound(self) -> bool:
        """Return True if its topology permits only some nodes, so that no node may be chosen for it alone."""
        return self.topology is not None and self.topology.binding


@dataclass(frozen=True, slots=True, kw_only=True)
class StartBundle:
    """Decision to start a bundle on a node once all allocations in ``after`` have ended. ``placements`` are by part."""

    id: AllocationId
    node: NodeName
    placements: tuple[Placement, ...]
    after: tuple[AllocationId, ...] = ()
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveBundle:
    """Decision to stop an allocation, whose devices request ``by`` gets, and to restart it elsewhere; see ``moves``."""

    id: AllocationId
    by: AllocationId


ClusterDecision = StartBundle | MoveBundle | Stop | Wait


@dataclass(slots=True)
class KnownBundle:
    """A request, the shapes that would serve it (``choices``), and the one with which it waits or runs (``choice``).

    ``as_it_lies`` is True if ``choice`` only describes the devices that the request holds, not where it could start.
    """

    request: BundleRequest
    choices: tuple[Choice, ...]
    choice: Choice
    as_it_lies: bool = False


class ClusterScheduler:
    """A ``Scheduler`` over the devices of many nodes.

    Args:
        nodes: the initial nodes.
        queues: the queue tree; requests name its leaves.
        limit: time limit of one cycle; see ``Scheduler``.
        levels: levels of the network, to which ``ClusterNode.domains`` refer.
    """

    def __init__(
        self,
        nodes: Sequence[ClusterNode],
        queues: Iterable[QueueSpec],
        *,
        options: Options | None = None,
        policy: str | PlacementPolicy = DEFAULT_POLICY,
        limit: CycleLimit | None = None,
        levels: Sequence[str] = (),
    ) -> None:
        self.kinds = DeviceKinds()
        self.nodes: dict[NodeName, ClusterNode] = {}
        width = max([GPUS_PER_NODE_MAX, *(len(node.devices) for node in nodes)])
        self.scheduler = Scheduler(
            [spec_of(node) for node in nodes],
            queues,
            policy=policy,
            options=options,
            gpus_per_node_max=width,
            limit=limit,
            levels=levels,
        )
        self.unmanaged_memory = ClusterUnmanagedMemory(self.scheduler)
        self.held_slices = HeldSlices()
        self._partitions = Partitions(self.scheduler)
        self.known: dict[AllocationId, KnownBundle] = {}
        self._cycle_due_s = 0.0
        for node in nodes:
            self._add_node(node)

    # ---- requests -------------------------------------------------------------------------------------------------

    def submit(self, request: BundleRequest) -> None:
        """Add the request to its queue. Raises CalabashError: unknown queue, or no kind of device can serve it."""
        choices = self.kinds.choices(request.bundle, request.constraints)
        choice = _with_room(self.scheduler, choices) or choices[0]
        self.scheduler.submit(queued(request, choice))
        self.known[request.id] = KnownBundle(request, choices, choice)
        self._partitions.add(request.id, choice.shape)

    def adopt(self, request: BundleRequest, placements: Sequence[Placement], *, started_at_s: float) -> None:
        """Restore a placement that exists already, without a decision, for example after a restart of the planner.

        Raises CalabashError if a device does not exist, or if the scheduler has given it to another request.
        """
        node = self.nodes.get(placements[0].node)
        if node is None:
            raise CalabashError(f"node {placements[0].node} does not exist", reason=Reason.NOT_FOUND)
        number = {found.device.uuid: i for i, found in enumerate(node.devices)}
        used = {part.device for placement in placements for part in placement.slices}
        if not used <= number.keys():
            raise CalabashError(f"node {node.name} has no device {min(used - number.keys())}", reason=Reason.NOT_FOUND)
        slices = [part for placement in placements for part in placement.slices]
        held = [node.devices[number[uuid]].kind for uuid in used]
        choice = _adopted(self.kinds, request, held, {part.profile for part in slices})
        place = place_of(self.scheduler.cluster.row(node.name), number, slices, choice.shape.mig_profiles)
        self.scheduler.adopt(queued(request, choice), placement=place, started_at_s=started_at_s)
        self.known[request.id] = KnownBundle(request, (choice,), choice, as_it_lies=True)
        self.held_slices.add(request.id, request.bundle, enumerate(placements))

    def finished(self, allocation: AllocationId) -> None:
        """Remove a request that has ended or was cancelled. Does nothing if it is unknown."""
        if self.known.pop(allocation, None) is not None:
            self.scheduler.finished(allocation)
            self.held_slices.remove(allocation)
            self._partitions.remove(allocation)

    def unbind(self, allocation: AllocationId) -> None:
        """Release the devices of a request that could not be started. The request waits again and keeps its age."""
        self.scheduler.unbind(allocation)
        self._remove_placement(allocation)

    def wait_again(self, request: BundleRequest) -> None:
        """Submit a request again. If no kind of device can serve it any more, it is dropped without an error."""
        with suppress(CalabashError):
            self.submit(request)

    def holds(self, allocation: AllocationId) -> bool:
        """Return True if the request holds devices."""
        return allocation in self.held_slices

    # ---- nodes and queues -----------------------------------------------------------------------------------------

    def put_node(self, node: ClusterNode) -> None:
        """Insert or update a node. If its devices have changed, the caller must first remove all requests on it."""
        before = self.nodes.get(node.name)
        if before is not None and not same_devices(before, node):
            self.remove_node(node.name)
            before = None
        if before is None:
            self.scheduler.add_node(spec_of(node))
            self._add_node(node)
            return
        if (before.labels, before.taints) != (node.labels, node.taints):
            relabel(self.scheduler, node.name, labels=node.labels, taints=node.taints)
        if before.domains != node.domains:
            levels = self.scheduler.cluster.levels
            self.scheduler.set_levels(levels, {n.name: n.domains for n in (*self.nodes.values(), node)})
        self._add_node(node, before)

    def remove_node(self, name: NodeName) -> None:
        """Remove a node. The caller must first remove all requests that have devices of the node."""
        if self.nodes.pop(name, None) is not None:
            self.unmanaged_memory.remove_node(name)
            self.scheduler.remove_node(name)

    def set_queues(self, queues: Iterable[QueueSpec]) -> None:
        """Replace the queue tree. Raises CalabashError if a queue with requests would vanish."""
        self.scheduler.set_queues(queues)

    # ---- decisions ------------------------------------------------------------------------------------------------

    def cycle(self, now_s: float) -> tuple[ClusterDecision, ...]:
        """Decide about all requests; see ``Scheduler.cycle``."""
        self._cycle_due_s = now_s + CYCLE_EVERY_S
        self.unmanaged_memory.catch_up()
        self._partitions.announce_waiting(self.held_slices)
        return tuple(self.translated(self.scheduler.cycle(now_s)))

    def decide(self, newcomers: Iterable[AllocationId], now_s: float) -> tuple[ClusterDecision, ...]:
        """Decide about ``newcomers`` (requests submitted since the last cycle), or about all if a cycle is due."""
        decided: list[ClusterDecision] = []
        self.unmanaged_memory.catch_up()
        self._partitions.announce_waiting(self.held_slices)
        for name in newcomers:
            if self.due(now_s):
                return (*decided, *self.cycle(now_s))
            if name in self.known and not self.holds(name):  # else it was decided with a member of its gang
                decided.extend(self.translated(self.scheduler.decide(name, now_s)))
        return tuple(decided)

    def due_in_s(self, now_s: float) -> float | None:
        """Return in how many seconds a cycle is due without any event; None if a cycle is due only after an event."""
        return due_in_s(self.scheduler, now_s)

    def due(self, now_s: float) -> bool:
        """Return True if a cycle is due."""
        wake_at_s = self.scheduler.wake_at_s()
        return now_s >= self._cycle_due_s or (wake_at_s is not None and wake_at_s <= now_s)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _remove_placement(self, allocation: AllocationId) -> None:
        """Release the devices of a request, which waits again. A shape that only describes them is replaced."""
        self.held_slices.remove(allocation)
        known = self.known[allocation]
        if known.as_it_lies:
            self.finished(allocation)
            self.wait_again(known.request)

    def _add_node(self, node: ClusterNode, before: ClusterNode | None = None) -> None:
        """Store a node and pass to the scheduler what has changed since ``before``; None: the node is new."""
        self.nodes[node.name] = node
        self.kinds.add(node.devices)
        for number, found in enumerate(node.devices):
            earlier = before.devices[number] if before else None
            _refresh(self.scheduler, node.name, number, found, earlier)
            if (earlier.foreign_mib if earlier else 0) != found.foreign_mib:
                self.unmanaged_memory.set(node.name, number, found)
        if node.schedulable is not (before.schedulable if before else True):
            self.scheduler.cordon(node.name, schedulable=node.schedulable)

    def translated(self, decisions: Iterable[Decision]) -> Iterable[ClusterDecision]:
        """Yield the scheduler's decisions as cluster decisions, each start checked by its sharing mode."""
        decisions = tuple(decisions)
        leaving: set[str] = set()  # requests whose moved allocations have all been removed from their old devices
        for decision in decisions:
            name = AllocationId(decision.id)
            if isinstance(decision, Bind):
                yield self._started(name, decision)
            elif isinstance(decision, Move):
                if decision.by not in leaving:
                    leaving.add(decision.by)
                    for other in decisions:
                        if isinstance(other, Move) and other.by == decision.by:
                            self.held_slices.remove(AllocationId(other.id))
                yield self._moved(name, decision)
            elif isinstance(decision, Evict):
                self._remove_placement(name)
                yield Stop(id=name, reason=decision.reason, by=AllocationId(decision.by), owed=decision.owed)
            elif isinstance(decision, Defer):
                explanation = self.kinds.with_model_names(decision.explanation)
                yield Wait(id=name, reason=decision.reason, explanation=explanation)

    def _started(self, name: AllocationId, decision: Bind) -> StartBundle | Wait:
        known = self.known[name]
        bundle = known.request.bundle
        answer = _slices(self, name, decision)
        if isinstance(answer, Misfit):
            self.scheduler.unbind(name)
            reported = Explanation(reason=answer.reason, summary=answer.message)
            return Wait(id=name, reason=answer.reason, explanation=reported)
        node = self.nodes[NodeName(decision.node)]
        because = choice_text(
            node, decision.placement.devices, self.held_slices, self.scheduler.placer.engine.preference
        )
        self.held_slices.add(name, bundle, enumerate(answer))
        after = tuple(AllocationId(a) for a in decision.after)
        return StartBundle(id=name, node=node.name, placements=tuple(answer), after=after, because=because)

    def _moved(self, name: AllocationId, decision: Move) -> MoveBundle | Stop:
        known, by = self.known[name], AllocationId(decision.by)
        answer = _slices(self, name, decision)
        if isinstance(answer, Misfit):  # it must be stopped nevertheless: another request has got its old devices
            self.scheduler.unbind(name)
            return Stop(id=name, reason=Reason.MOVED, by=by)
        self.held_slices.add(name, known.request.bundle, enumerate(answer))
        return MoveBundle(id=name, by=by)


def _refresh(scheduler: Scheduler, node: str, number: int, found: NodeDevice, earlier: NodeDevice | None) -> None:
    """Pass the health and MIG instances of a device to the scheduler; ``earlier``: the device before, None if new."""
    if earlier is not None and earlier.device.health is not found.device.health:
        scheduler.set_health(node, number, healthy=found.device.health is Health.HEALTHY)
    set_mig_instances(scheduler, node, number, found.device.mig_instances)


def _with_room(scheduler: Scheduler, choices: Sequence[Choice]) -> Choice | None:
    if len(choices) == 1:
        return choices[0]
    return next((c for c in choices if scheduler.placer.choose(c.shape) is not None), None)


def _slices(cluster: ClusterScheduler, name: AllocationId, decision: Bind | Move) -> list[Placement] | Misfit:
    """Return the placements of the parts on the chosen devices, or the reason why a sharing mode refuses them there."""
    known, node = cluster.known[name], cluster.nodes[NodeName(decision.node)]
    wanted, held = resolve_bundle(known.request.bundle), cluster.held_slices
    chosen = [node.devices[i] for i in decision.placement.devices]
    views = [held.views((node.name, d.device.uuid), foreign_mib=d.foreign_mib) for d in chosen]
    on = {d.device.uuid: wanted.on(d.device) for d in chosen}
    answer = placed([*on.values()], known.choice.layout, views, places=decision.placement.mig_places)
    if isinstance(answer, Misfit):
        return answer
    return [
        Placement(node=node.name, mode=on[slices[0].device].modes[number].name, slices=tuple(slices))
        for number, slices in enumerate(answer)
    ]


def _adopted(kinds: DeviceKinds, request: BundleRequest, held: Sequence[str], profiles: AbstractSet[str]) -> Choice:
    """Return the shape of a request that holds devices of the kinds ``held``, even if constraints forbid them now."""
    constraints = PlacementConstraints(tolerations=frozenset("*"))
    for choice in kinds.choices(request.bundle, constraints):
        models = choice.shape.models
        same = not choice.shape.mig_profile or profiles <= set(choice.shape.mig_profiles)
        if same and choice.shape.gpu_count == len(held) and (not models or models.issuperset(held)):
            return _anywhere(choice)
    raise CalabashError(f"{len(held)} devices do not match the request {request.id}", reason=Reason.CONFLICT)


@lru_cache(maxsize=4096)
def _anywhere(choice: Choice) -> Choice:
    return Choice(shape=replace(choice.shape, models=frozenset()), layout=choice.layout)


def queued(request: BundleRequest, choice: Choice) -> Request:
    """Return the request as the scheduler's ``Request``, with the shape of ``choice``."""
    asked = request.bundle.request
    return Request(
        id=request.id,
        shape=choice.shape,
        queue=asked.queue,
        priority=asked.priority,
        run_time_s=asked.run_time_s or None,
        tenant=asked.tenant,
        submitted_at_s=request.submitted_at_s,
        owner=request.owner,
        gang=asked.gang,
        min_member=asked.gang_size if asked.gang else 1,
        movable=request.movable,
        evictable=request.evictable,
        guarded=request.guarded,
        topology=request.topology,
        rank=request.rank,
    )
