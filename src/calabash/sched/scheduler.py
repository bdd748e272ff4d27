"""The scheduler: events in, decisions out.

``Scheduler`` owns the resident cluster, the queue tree and the book of what waits and runs. Callers tell it what
happened (submitted, ended, a node came or went) and ask for a ``cycle``; the decisions of a cycle are already taken
in its own books when it returns. Time is the ``now_s`` argument, on any clock that the caller likes. It does no I/O,
keeps no thread, and the same class serves the stand-alone pool, the planner and the simulator.

| event | effect |
|---|---|
| ``submit`` | joins the line of its queue; its demand counts for fair shares |
| ``cycle`` | ``Bind``: runs from now on; ``Evict``: waits again; ``Move``: runs elsewhere; ``Pending``: waits |
| ``adopt`` | runs already, at this place (restart of the caller, foreign placements) |
| ``finished`` | ended by itself, or cancelled: its place is free |
| ``unbind`` | a bind could not be carried out: it waits again, keeping its place in line |
| node events | capacity changes; what ran on a removed node waits again |

An executor carries decisions out in order: evictions and moves first, a ``Bind`` once all in its ``after`` are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from calabash.model.errors import CalabashError, Reason
from calabash.sched.actions.reserve import Reservation
from calabash.sched.actions.room import ClusterRoom
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.engine import Engine
from calabash.sched.cluster.scoring import PlacementPolicy
from calabash.sched.cluster.shape import WHOLE_MILLI, NodePlacement, Shape
from calabash.sched.cluster.spec import NodeSpec
from calabash.sched.cycle import Cycle
from calabash.sched.decisions import Decision, Explanation, Options, Request, Running, State
from calabash.sched.policies.registry import policy_named
from calabash.sched.queues.fairshare import Amount
from calabash.sched.queues.registry import Board, GangRegistry
from calabash.sched.queues.tree import QueueSpec, QueueTree

DEFAULT_POLICY = "pgb-online"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything needed to go on elsewhere: the caller's nodes, the queues, and who waits and runs."""

    nodes: tuple[NodeSpec, ...]
    cordoned: tuple[str, ...]
    queues: tuple[QueueSpec, ...]
    past: tuple[tuple[str, float], ...]
    options: Options
    waiting: tuple[Request, ...]
    running: tuple[Running, ...]
    now_s: float


class Scheduler:
    """See the module's description.

    Args:
        nodes: the cluster; more come and go by ``add_node`` and ``remove_node``.
        queues: the tree; asks name its leaves.
        policy: which node is best; a name as in ``policies.registry``, or a policy.
        options: how to decide.
    """

    def __init__(
        self,
        nodes: Sequence[NodeSpec],
        queues: Iterable[QueueSpec],
        *,
        policy: str | PlacementPolicy = DEFAULT_POLICY,
        options: Options | None = None,
    ) -> None:
        self.cluster = Cluster(nodes)
        self.policy = policy_named(policy) if isinstance(policy, str) else policy
        self.options = options or Options()
        self.tree = QueueTree(queues, half_life_s=self.options.half_life_s)
        self.registry = GangRegistry()
        self.room = ClusterRoom(self.cluster, Engine(self.cluster, self.policy))
        self.board = Board(self.room)
        self.reservations: list[Reservation] = []
        self.now_s = 0.0
        self._starts = 0
        self._reported: dict[str, Reason] = {}
        self._charges: dict[Shape, Amount] = {}
        self._specs = {spec.name: spec for spec in nodes}
        self._card_memory_mib = self.options.fraction_memory_mib
        self._removed: set[int] = set()
        self._count_capacity()

    # ---- requests -------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Join the line. Raises CalabashError: unknown queue, id in use."""
        self.tree.require_leaf(request.queue)
        self.registry.add(request)
        self.room.engine.observe(request.shape)
        self.tree.wait(request.queue, self.charge_of(request.shape))

    def cancel(self, request_id: str) -> None:
        """Leave: the line or the place. Raises CalabashError when the id is unknown."""
        self._remove(request_id)

    def finished(self, request_id: str) -> None:
        """It ended by itself. Raises CalabashError when the id is unknown."""
        self._remove(request_id)

    def adopt(
        self, request: Request, *, node: str = "", placement: NodePlacement | None = None, started_at_s: float
    ) -> Running:
        """It runs already: at ``placement``, or on the best place (of ``node`` if named).

        Raises CalabashError when there is no such room.
        """
        if placement is None:
            placement = (
                self.room.choose_on(request.shape, self.cluster.row(node)) if node else self.room.choose(request.shape)
            )
            if placement is None:
                raise CalabashError(
                    f"{request.id} has no room {'on ' + node if node else 'anywhere'}", reason=Reason.NO_CAPACITY
                )
        self.submit(request)
        try:
            self.cluster.place(request.shape, placement)
        except CalabashError:
            self._remove(request.id)
            raise
        return self.begin(request, placement, started_at_s)

    def unbind(self, request_id: str) -> None:
        """Its bind could not be carried out: it waits again."""
        if self.registry.running(request_id) is not None:
            running = self.registry.stop(request_id)
            self.cluster.release(running.request.shape, running.placement)
            self.tree.stop(running.request.queue, running.charge)

    # ---- nodes and queues -----------------------------------------------------------------------------------------

    def add_node(self, spec: NodeSpec) -> None:
        self.cluster.add_node(spec)
        self._specs[spec.name] = spec
        self._count_capacity()

    def remove_node(self, name: str) -> tuple[str, ...]:
        """The node is gone; what ran there waits again. Returns their ids."""
        row = self.cluster.row(name)
        lost = tuple(self.registry.on_node.get(row, ()))
        for request_id in lost:
            self.unbind(request_id)
        self.cluster.cordon(row)
        self._removed.add(row)
        self._specs.pop(name, None)
        self._count_capacity()
        return lost

    def cordon(self, name: str) -> None:
        """Nothing new goes there."""
        self.cluster.cordon(self.cluster.row(name))

    def uncordon(self, name: str) -> None:
        row = self.cluster.row(name)
        if row in self._removed:
            raise CalabashError(f"node {name} was removed", reason=Reason.NOT_FOUND, hint="add it again")
        self.cluster.cordon(row, schedulable=True)

    def set_queues(self, specs: Iterable[QueueSpec]) -> None:
        """Replace the tree. Raises CalabashError when a queue with jobs would vanish."""
        self.tree.replace(specs)

    # ---- decisions ------------------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> None:
        """Note the time before an event that happened then, so that past use is counted exactly."""
        self.now_s = max(now_s, self.now_s)
        self.tree.advance(self.now_s)

    def cycle(self, now_s: float) -> tuple[Decision, ...]:
        """Decide everything that can be decided now."""
        return self._cycle(now_s).run()

    def why(self, request_id: str, now_s: float) -> Explanation:
        """Why a request waits. Raises CalabashError when it does not."""
        if self.registry.running(request_id) is not None:
            raise CalabashError(f"{request_id} is running", reason=Reason.CONFLICT, hint="nothing to explain")
        self.registry.gang_of(request_id)
        return self._cycle(now_s).explain(request_id)

    def state_of(self, request_id: str) -> State | None:
        """None when the id is unknown."""
        if request_id not in self.registry:
            return None
        return State.RUNNING if self.registry.running(request_id) is not None else State.WAITING

    def charge_of(self, shape: Shape) -> Amount:
        """What a queue is charged for the shape: the larger of its compute and memory shares, per device."""
        charge = self._charges.get(shape)
        if charge is None:
            charge = self._charges[shape] = Amount(
                shape.gpu_count * self._device_milli(shape), shape.cpu_milli, shape.memory_mib
            )
        return charge

    # ---- snapshot -------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """A frozen copy, from which ``restore`` builds an equal scheduler."""
        gangs = self.registry.gangs.values()
        return Snapshot(
            nodes=tuple(self._specs.values()),
            cordoned=tuple(name for name, row in self.cluster.row_of.items() if not self.cluster.schedulable[row]),
            queues=self.tree.specs,
            past=self.tree.past(),
            options=self.options,
            waiting=tuple(request for gang in gangs for request in gang.waiting.values()),
            running=tuple(r for gang in gangs for r in gang.running.values()),
            now_s=self.now_s,
        )

    @classmethod
    def restore(cls, snapshot: Snapshot, *, policy: str | PlacementPolicy = DEFAULT_POLICY) -> Scheduler:
        """An equal scheduler: the next cycle of both gives the same decisions, but for ties between equal nodes."""
        scheduler = cls(snapshot.nodes, snapshot.queues, policy=policy, options=snapshot.options)
        for running in snapshot.running:
            row = scheduler.cluster.row(running.node)
            placement = replace(running.placement, node=row)
            scheduler.adopt(running.request, placement=placement, started_at_s=running.started_at_s)
        for request in snapshot.waiting:
            scheduler.submit(request)
        for name in snapshot.cordoned:
            scheduler.cordon(name)
        scheduler.tree.set_past(snapshot.past, snapshot.now_s)
        scheduler.now_s = snapshot.now_s
        return scheduler

    # ---- for the cycle --------------------------------------------------------------------------------------------

    def _cycle(self, now_s: float) -> Cycle:
        self.advance(now_s)
        return Cycle(self, self.now_s)

    def begin(self, request: Request, placement: NodePlacement, started_at_s: float) -> Running:
        running = Running(
            request=request,
            placement=placement,
            node=self.cluster.names[placement.node],
            started_at_s=started_at_s,
            charge=self.charge_of(request.shape),
            sequence=self._starts,
        )
        self._starts += 1
        self.registry.start(running)
        self.tree.start(request.queue, running.charge)
        self._reported.pop(request.id, None)
        return running

    def end_place(self, running: Running, now_s: float) -> None:
        """Evicted: its place on the board is already free."""
        gang = self.registry.gang_of(running.request.id)
        self.registry.stop(running.request.id)
        gang.evicted_at_s = now_s
        self.tree.stop(running.request.queue, running.charge)

    def newly_reported(self, request_id: str, reason: Reason) -> bool:
        """Whether this is a change of what blocks the request since it was told last."""
        new = self._reported.get(request_id) is not reason
        self._reported[request_id] = reason
        return new

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _remove(self, request_id: str) -> None:
        gone = self.registry.remove(request_id)
        self._reported.pop(request_id, None)
        if isinstance(gone, Running):
            self.cluster.release(gone.request.shape, gone.placement)
            self.tree.refund(gone.request.queue, gone.charge)
        else:
            self.tree.unwait(gone.queue, self.charge_of(gone.shape))

    def _device_milli(self, shape: Shape) -> int:
        if not shape.gpu_count or shape.whole:
            return WHOLE_MILLI if shape.gpu_count else 0
        memory_milli = 0
        if shape.gpu_memory_mib and self._card_memory_mib:
            memory_milli = min(WHOLE_MILLI, -(-shape.gpu_memory_mib * WHOLE_MILLI // self._card_memory_mib))
        if shape.mig_profile:
            return _mig_milli(shape.mig_profile)
        return max(shape.gpu_milli, memory_milli)

    def _count_capacity(self) -> None:
        alive = [row for row in range(self.cluster.node_count) if row not in self._removed]
        self.tree.set_capacity(
            Amount(
                int(self.cluster.gpu_count[alive].sum()) * WHOLE_MILLI,
                int(self.cluster.cpu_milli[alive].sum()),
                int(self.cluster.memory_mib[alive].sum()),
            )
        )
        if not self._card_memory_mib:
            cards = self.cluster.gpu_mib[self.cluster.gpu_mib > 0]
            self._card_memory_mib = int(cards.min()) if len(cards) else 0


def _mig_milli(profile: str) -> int:
    """``3g.40gb`` is three of seven compute slices."""
    return min(WHOLE_MILLI, -(-int(profile.partition("g")[0]) * WHOLE_MILLI // 7))
