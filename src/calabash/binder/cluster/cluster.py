"""A cluster of many nodes in model nouns: the sibling of ``local``, for requests of several parts.

``ClusterScheduler`` is the ``Scheduler`` for the planner. Devices become nodes of kinds (``kinds``), a bundle becomes one
shape (``bundle``), and every bind is checked against ``sharing`` beside what is held (``tenancy``) before it is told, so
that nothing is ever planned that a sharing mode refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

from calabash.binder.cluster.bundle import Bundle, mode_of, placed, places_of
from calabash.binder.cluster.device_kinds import Choice, Kinds, NodeDevice, PlacementConstraints
from calabash.binder.cluster.nodes import ClusterNode, same_devices, spec_of
from calabash.binder.cluster.occupied import ForeignInCluster
from calabash.binder.cluster.tenancy import Tenancy
from calabash.binder.local.machine import CYCLE_EVERY_S, Stop, Wait, due_in_s
from calabash.binder.local.partitions import Partitions
from calabash.model.device import DeviceUuid, Health, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId, Placement, Slice
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
    relabel,
    set_mig_instances,
)
from calabash.sharing.protocol import Misfit

GPUS_PER_NODE_MAX = 16
ANYWHERE = PlacementConstraints()


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleRequest:
    """A bundle with all that decides where and when it starts.

    Args:
        owner: whose request it is: owners take turns, and a gang is of one owner and tenant.
        evictable: whether it may be stopped for others. guarded: only where it is borrowed, see ``sched.Request``.
        movable: whether it may be stopped to start elsewhere; see ``cluster_moves.set_movable``.
    """

    id: AllocationId
    bundle: Bundle
    constraints: PlacementConstraints = ANYWHERE
    submitted_at_s: float
    owner: str = ""
    evictable: bool = True
    guarded: bool = False
    movable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartBundle:
    """Start each part on its slices, once everything in ``after`` is gone; ``because`` says why there."""

    id: AllocationId
    node: NodeName
    placements: tuple[Placement, ...]
    after: tuple[AllocationId, ...] = ()
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveBundle:
    """Stop it: its place is on another node, or on other devices, to make room for ``by``. See ``cluster_moves``."""

    id: AllocationId
    by: AllocationId


ClusterDecision = StartBundle | MoveBundle | Stop | Wait


@dataclass(slots=True)
class KnownBundle:
    """A request, the shapes that would serve it, and the one by which it waits or has its place. ``as_it_lies``: by one that
    only says what it holds, not where it might have gone."""

    request: BundleRequest
    choices: tuple[Choice, ...]
    choice: Choice
    as_it_lies: bool = False


class ClusterScheduler:
    """A ``Scheduler`` over the devices of many nodes, in model nouns.

    Args:
        nodes: the cluster at the start; more come and go.
        queues: the queue tree; requests name its leaves.
        limit: how long one cycle may take; see ``Scheduler``.
    """

    def __init__(
        self,
        nodes: Sequence[ClusterNode],
        queues: Iterable[QueueSpec],
        *,
        options: Options | None = None,
        policy: str | PlacementPolicy = DEFAULT_POLICY,
        limit: CycleLimit | None = None,
    ) -> None:
        self.kinds = Kinds()
        self.nodes: dict[NodeName, ClusterNode] = {}
        width = max([GPUS_PER_NODE_MAX, *(len(node.devices) for node in nodes)])
        self.scheduler = Scheduler(
            [spec_of(node) for node in nodes],
            queues,
            policy=policy,
            options=options,
            gpus_per_node_max=width,
            limit=limit,
        )
        self.strangers = ForeignInCluster(self.scheduler)
        self.tenancy = Tenancy()
        self._partitions = Partitions(self.scheduler)
        self.known: dict[AllocationId, KnownBundle] = {}
        self._cycle_due_s = 0.0
        for node in nodes:
            self._joined(node)

    # ---- requests -------------------------------------------------------------------------------------------------

    def submit(self, request: BundleRequest) -> None:
        """Join the order of its queue. Raises CalabashError: unknown queue, no kind of device that would do."""
        choices = self.kinds.choices(request.bundle, request.constraints)
        choice = _with_room(self.scheduler, choices) or choices[0]
        self.scheduler.submit(queued(request, choice))
        self.known[request.id] = KnownBundle(request, choices, choice)
        self._partitions.submitted(request.id, choice.shape)

    def adopt(self, request: BundleRequest, placements: Sequence[Placement], *, started_at_s: float) -> None:
        """It holds these already. Raises CalabashError when the node or its devices are not there, or have no such room."""
        node = self.nodes.get(placements[0].node)
        if node is None:
            raise CalabashError(f"node {placements[0].node} is not there", reason=Reason.NOT_FOUND)
        number = {found.device.uuid: i for i, found in enumerate(node.devices)}
        used = {part.device for placement in placements for part in placement.slices}
        if not used <= number.keys():
            raise CalabashError(f"node {node.name} has no device {min(used - number.keys())}", reason=Reason.NOT_FOUND)
        slices = [part for placement in placements for part in placement.slices]
        held = [node.devices[number[uuid]].kind for uuid in used]
        choice = _adopted(self.kinds, request, held, {part.profile for part in slices})
        place = _place(self.scheduler.cluster.row(node.name), number, slices, choice.shape.mig_profiles)
        self.scheduler.adopt(queued(request, choice), placement=place, started_at_s=started_at_s)
        self.known[request.id] = KnownBundle(request, (choice,), choice, as_it_lies=True)
        self.tenancy.take(request.id, request.bundle, enumerate(placements))

    def finished(self, allocation: AllocationId) -> None:
        """It ended, or was cancelled while it waited; nothing when it is not known."""
        if self.known.pop(allocation, None) is not None:
            self.scheduler.finished(allocation)
            self.tenancy.drop(allocation)
            self._partitions.finished(allocation)

    def unbind(self, allocation: AllocationId) -> None:
        """Its start could not be carried out: it waits again and keeps its place in the order."""
        self.scheduler.unbind(allocation)
        self._lost(allocation)

    def wait_again(self, request: BundleRequest) -> None:
        """It waits by what it asks. Where no kind of device would do, it is not known until it is submitted for another."""
        with suppress(CalabashError):
            self.submit(request)

    def holds(self, allocation: AllocationId) -> bool:
        """Whether it has its place."""
        return allocation in self.tenancy

    # ---- nodes and queues -----------------------------------------------------------------------------------------

    def put_node(self, node: ClusterNode) -> None:
        """A node came, or is otherwise than it was, with the same devices. Nothing may run on a node that is put anew
        with other devices."""
        before = self.nodes.get(node.name)
        if before is not None and not same_devices(before, node):
            self.remove_node(node.name)
            before = None
        if before is None:
            self.scheduler.add_node(spec_of(node))
            self._joined(node)
            return
        if (before.labels, before.taints) != (node.labels, node.taints):
            relabel(self.scheduler, node.name, labels=node.labels, taints=node.taints)
        self._joined(node, before)

    def remove_node(self, name: NodeName) -> None:
        """The node is gone; the caller took everything off it before."""
        if self.nodes.pop(name, None) is not None:
            self.strangers.leave(name)
            self.scheduler.remove_node(name)

    def set_queues(self, queues: Iterable[QueueSpec]) -> None:
        """Replace the tree. Raises CalabashError when a queue with requests would vanish."""
        self.scheduler.set_queues(queues)

    # ---- decisions ------------------------------------------------------------------------------------------------

    def cycle(self, now_s: float) -> tuple[ClusterDecision, ...]:
        """Decide about everything; see ``Scheduler.cycle``."""
        self._cycle_due_s = now_s + CYCLE_EVERY_S
        self.strangers.catch_up()
        self._partitions.look_ahead(self.tenancy)
        return tuple(self.translated(self.scheduler.cycle(now_s)))

    def decide(self, newcomers: Iterable[AllocationId], now_s: float) -> tuple[ClusterDecision, ...]:
        """Decide about what was submitted since the last cycle, or about everything when a cycle is due."""
        decided: list[ClusterDecision] = []
        self.strangers.catch_up()
        self._partitions.look_ahead(self.tenancy)
        for name in newcomers:
            if self.due(now_s):
                return (*decided, *self.cycle(now_s))
            if name in self.known and not self.holds(name):  # else a member of its gang was decided with it
                decided.extend(self.translated(self.scheduler.decide(name, now_s)))
        return tuple(decided)

    def due_in_s(self, now_s: float) -> float | None:
        """Return in how many seconds everything is to be looked at again, though nothing happens; None if never."""
        return due_in_s(self.scheduler, now_s)

    def due(self, now_s: float) -> bool:
        """Whether everything is to be looked at."""
        wake_at_s = self.scheduler.wake_at_s()
        return now_s >= self._cycle_due_s or (wake_at_s is not None and wake_at_s <= now_s)

    def why(self, allocation: AllocationId, now_s: float) -> Explanation:
        """Why it waits. Raises CalabashError when it does not wait."""
        return self.scheduler.explain(allocation, now_s)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _lost(self, allocation: AllocationId) -> None:
        """It has no place any more; a shape that only said where it lay would take it anywhere."""
        self.tenancy.drop(allocation)
        known = self.known[allocation]
        if known.as_it_lies:
            self.finished(allocation)
            self.wait_again(known.request)

    def _joined(self, node: ClusterNode, before: ClusterNode | None = None) -> None:
        """Take over what may change of a node that the scheduler has."""
        self.nodes[node.name] = node
        self.kinds.add(node.devices)
        for number, found in enumerate(node.devices):
            earlier = before.devices[number] if before else None
            _refresh(self.scheduler, node.name, number, found, earlier)
            if (earlier.foreign_mib if earlier else 0) != found.foreign_mib:
                self.strangers.set(node.name, number, found)
        if node.schedulable is not (before.schedulable if before else True):
            self.scheduler.cordon(node.name, schedulable=node.schedulable)

    def translated(self, decisions: Iterable[Decision]) -> Iterable[ClusterDecision]:
        """Decisions of the scheduler in model nouns, each checked by its sharing mode."""
        decisions = tuple(decisions)
        leaving: set[str] = set()  # for whom all that are moved were taken off their old places
        for decision in decisions:
            name = AllocationId(decision.id)
            if isinstance(decision, Bind):
                yield self._started(name, decision)
            elif isinstance(decision, Move):
                if decision.by not in leaving:
                    leaving.add(decision.by)
                    for other in decisions:
                        if isinstance(other, Move) and other.by == decision.by:
                            self.tenancy.drop(AllocationId(other.id))
                yield self._moved(name, decision)
            elif isinstance(decision, Evict):
                self._lost(name)
                yield Stop(id=name, reason=decision.reason, by=AllocationId(decision.by), owed=decision.owed)
            elif isinstance(decision, Defer):
                yield Wait(id=name, reason=decision.reason, explanation=decision.explanation)

    def _started(self, name: AllocationId, decision: Bind) -> StartBundle | Wait:
        known = self.known[name]
        bundle = known.request.bundle
        answer = _slices(self, name, decision)
        if isinstance(answer, Misfit):
            self.scheduler.unbind(name)
            reported = Explanation(reason=answer.reason, summary=answer.message)
            return Wait(id=name, reason=answer.reason, explanation=reported)
        node = self.nodes[NodeName(decision.node)]
        because = _because(node, decision.placement.devices, self.tenancy, self.scheduler.placer.engine.preference)
        self.tenancy.take(name, bundle, enumerate(answer))
        after = tuple(AllocationId(a) for a in decision.after)
        return StartBundle(id=name, node=node.name, placements=tuple(answer), after=after, because=because)

    def _moved(self, name: AllocationId, decision: Move) -> MoveBundle | Stop:
        known, by = self.known[name], AllocationId(decision.by)
        answer = _slices(self, name, decision)
        if isinstance(answer, Misfit):  # it leaves nevertheless: its old place is another's already
            self.scheduler.unbind(name)
            return Stop(id=name, reason=Reason.MOVED, by=by)
        self.tenancy.take(name, known.request.bundle, enumerate(answer))
        return MoveBundle(id=name, by=by)


def _refresh(scheduler: Scheduler, node: str, number: int, found: NodeDevice, earlier: NodeDevice | None) -> None:
    """How a device fares now."""
    if earlier is not None and earlier.device.health is not found.device.health:
        scheduler.set_health(node, number, healthy=found.device.health is Health.HEALTHY)
    set_mig_instances(scheduler, node, number, found.device.mig_instances)


def _with_room(scheduler: Scheduler, choices: Sequence[Choice]) -> Choice | None:
    if len(choices) == 1:
        return choices[0]
    return next((c for c in choices if scheduler.placer.choose(c.shape) is not None), None)


def _slices(cluster: ClusterScheduler, name: AllocationId, decision: Bind | Move) -> list[Placement] | Misfit:
    """By the sharing modes' own rules, beside what is held there now."""
    known, node = cluster.known[name], cluster.nodes[NodeName(decision.node)]
    bundle, held = known.request.bundle, cluster.tenancy
    chosen = [node.devices[i] for i in decision.placement.devices]
    views = [held.views((node.name, d.device.uuid), foreign_mib=d.foreign_mib) for d in chosen]
    devices = {d.device.uuid: d.device for d in chosen}
    answer = placed(bundle, known.choice.layout, [*devices.values()], views, places=decision.placement.mig_places)
    if isinstance(answer, Misfit):
        return answer
    return [
        Placement(node=node.name, mode=mode_of(bundle, number, devices[slices[0].device]), slices=tuple(slices))
        for number, slices in enumerate(answer)
    ]


def _adopted(kinds: Kinds, request: BundleRequest, held: Sequence[str], profiles: AbstractSet[str]) -> Choice:
    """The shape of what holds devices of these kinds already, wherever new ones of its kind would go."""
    constraints = PlacementConstraints(tolerations=frozenset("*"))
    for choice in kinds.choices(request.bundle, constraints):
        models = choice.shape.models
        same = not choice.shape.mig_profile or profiles <= set(choice.shape.mig_profiles)
        if same and choice.shape.gpu_count == len(held) and (not models or models.issuperset(held)):
            return _anywhere(choice)
    raise CalabashError(f"{len(held)} devices are not what {request.id} asks for", reason=Reason.CONFLICT)


def _place(
    row: int, number: Mapping[DeviceUuid, int], slices: Sequence[Slice], profiles: Sequence[str]
) -> NodePlacement:
    """Where slices lie, in the scheduler's numbers of a node and its devices."""
    devices = tuple(sorted({number[part.device] for part in slices}))
    on = [[part for part in slices if number[part.device] == device] for device in devices]
    places = tuple(places_of(profiles, parts) for parts in on) if profiles else ()
    return NodePlacement(node=row, devices=devices, mig_places=places)


@lru_cache(maxsize=4096)
def _anywhere(choice: Choice) -> Choice:
    return Choice(shape=replace(choice.shape, models=frozenset()), layout=choice.layout)


def _because(node: ClusterNode, devices: Sequence[int], tenancy: Tenancy, policy: str) -> str:
    """Where it goes and why there, in one line; asked before it holds its place."""
    places = ", ".join(f"device {node.devices[i].device.index}" for i in devices)
    shared = sum(tenancy.shared((node.name, node.devices[i].device.uuid)) for i in devices)
    beside = f"{shared} of {len(devices)} shared with others already" if shared else "idle before"
    return f"{node.name}: {places} ({beside}); policy {policy}"


def queued(request: BundleRequest, choice: Choice) -> Request:
    """As the scheduler is asked."""
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
    )
