"""The state that scheduler, cycle, actions and explanations share, and the few changes that keep its parts in step.

What runs is in four places: the arrays of the cluster, the registry, the use of the queue tree, and the turns of owners. They
are changed together, here and nowhere else, so that they always agree. ``version`` changes whenever room may have come
or gone; ``unsettled`` is set when something was freed since everything that waits was looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace

from calabash.model.errors import CalabashError, Reason
from calabash.sched.charges import Charges
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.board import Board
from calabash.sched.cluster.engine import Engine
from calabash.sched.cluster.room import ClusterRoom
from calabash.sched.cluster.scoring import PlacementPolicy
from calabash.sched.cluster.shape import SHAPES_KEPT_MAX, WHOLE_MILLI, NodePlacement, Shape
from calabash.sched.cluster.spec import NodeSpec
from calabash.sched.decisions import GangKey, Options, Request, Running
from calabash.sched.explain.verdicts import Verdicts
from calabash.sched.queues.fairshare import Amount, total
from calabash.sched.queues.registry import GangRegistry
from calabash.sched.queues.reservation import Reservation
from calabash.sched.queues.spec import QueueSpec
from calabash.sched.queues.tree import QueueTree
from calabash.sched.queues.turns import OwnerTurns
from calabash.sched.queues.unit_table import UnitTable


class SchedulerState:
    """See the module's description.

    Attributes:
        reservations: promises of the last cycle. passed: gangs whose promise lapsed, until when others may pass them.
        reported: the reason that each waiting request was told last.
        verdicts: what the nodes say about a shape, until the version changes.
        moves_left: how many may still be moved; whoever carries moves out says when there may be more.
        refused: kinds of portions that were refused since the version changed; see ``cycle``.
        units: columns over what runs, up to date after ``UnitTable.sync``.
        cut: shapes of gangs for which the last cycle did not try all ways to place them.
    """

    def __init__(
        self,
        nodes: Sequence[NodeSpec],
        queues: Iterable[QueueSpec],
        *,
        policy: PlacementPolicy,
        options: Options,
        gpus_per_node_max: int = 0,
    ) -> None:
        self.options = options
        self.cluster = Cluster(nodes, gpus_per_node_max=gpus_per_node_max)
        self.room = ClusterRoom(self.cluster, Engine(self.cluster, policy))
        self.board = Board(self.room)
        self.tree = QueueTree(queues, half_life_s=options.half_life_s)
        self.registry = GangRegistry()
        self.units = UnitTable()
        self.turns = OwnerTurns()
        self.charges = Charges(self.cluster, options.fraction_memory_mib)
        self.reservations: list[Reservation] = []
        self.passed: dict[GangKey, float] = {}
        self.reported: dict[str, Reason] = {}
        self.refused: dict[tuple[object, ...], Reason] = {}
        self.cut: set[tuple[Shape, ...]] = set()
        self.verdicts = Verdicts(self.room)
        self._shapes: dict[Shape, Shape] = {}
        self.moves_left = sys.maxsize
        self.now_s = 0.0
        self.version = 0
        self.unsettled = True
        self._starts = 0
        self.count_capacity(frozenset())

    # ---- time and amounts -----------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> None:
        """Note the time, so that past use is counted exactly."""
        self.now_s = max(now_s, self.now_s)
        self.tree.advance(self.now_s)

    def need(self, requests: Sequence[Request]) -> Amount:
        """What the requests are charged together."""
        if len(requests) == 1:
            return self.charges.of(requests[0].shape)
        return total(self.charges.of(r.shape) for r in requests)

    def count_capacity(self, without: Iterable[int]) -> None:
        """What there is to divide: all rows but these."""
        gone = set(without)
        alive = [row for row in range(self.cluster.node_count) if row not in gone]
        self.tree.set_capacity(
            Amount(
                int(self.cluster.gpu_count[alive].sum()) * WHOLE_MILLI,
                int(self.cluster.cpu_milli[alive].sum()),
                int(self.cluster.memory_mib[alive].sum()),
            )
        )
        self.freed()

    def occupy(self, shape: Shape, placement: NodePlacement) -> bool:
        """Something outside of the registry takes this place; False when there is no such room."""
        try:
            self.cluster.place(shape, placement)
        except CalabashError:
            return False
        return True

    def vacate(self, shape: Shape, placement: NodePlacement) -> None:
        """What ``occupy`` took is free."""
        self.cluster.release(shape, placement)

    def freed(self) -> None:
        """Something may fit now that did not."""
        self.changed()
        self.unsettled = True

    def changed(self) -> None:
        """What was refused may fare otherwise now."""
        self.version += 1
        self.refused.clear()
        self.verdicts.clear()

    # ---- what waits and runs --------------------------------------------------------------------------------------

    def join(self, request: Request) -> None:
        """It waits in its queue. Raises CalabashError: unknown queue, id in use."""
        self.tree.form.require_leaf(request.queue)
        request = self._with_known_shape(request)
        self.registry.add(request)
        self.tree.use.wait(request.queue, self.charges.of(request.shape))
        self.turns.join(request.queue, request.behalf)

    def _with_known_shape(self, request: Request) -> Request:
        """The same request; equal shapes become one object, since comparing two is most of the cost of looking one up."""
        if len(self._shapes) >= SHAPES_KEPT_MAX:
            self._shapes.clear()
        shape = self._shapes.setdefault(request.shape, request.shape)
        return request if shape is request.shape else replace(request, shape=shape)

    def begin(self, request: Request, placement: NodePlacement, started_at_s: float) -> Running:
        """It runs; its place in the arrays is taken already."""
        running = Running(
            request=request,
            placement=placement,
            node=self.cluster.names[placement.node],
            started_at_s=started_at_s,
            charge=self.charges.of(request.shape),
            sequence=self._starts,
        )
        self._starts += 1
        self.registry.start(running)
        self.tree.use.start(request.queue, running.charge)
        self.turns.start(request.queue, request.behalf, running.charge)
        self.reported.pop(request.id, None)
        self.changed()
        return running

    def stop(self, request_id: str) -> Running:
        """It waits again; its place in the arrays is the caller's to give back."""
        running = self.registry.stop(request_id)
        self.tree.use.stop(running.request.queue, running.charge)
        self.turns.stop(running.request.queue, running.request.behalf, running.charge)
        self.freed()
        return running

    def move(self, running: Running, placement: NodePlacement) -> str:
        """It runs elsewhere; the arrays say so already. Returns the node."""
        node = self.cluster.names[placement.node]
        self.registry.move(replace(running, placement=placement, node=node))
        self.freed()
        return node

    def remove(self, request_id: str) -> None:
        """It is gone, whether it waited or ran. Raises CalabashError when the id is unknown."""
        gang = self.registry.gang_of(request_id)
        gone = self.registry.remove(request_id)
        self.reported.pop(request_id, None)
        request = gone.request if isinstance(gone, Running) else gone
        if isinstance(gone, Running):
            self.cluster.release(request.shape, gone.placement)
            self.tree.use.end(request.queue, gone.charge)
            self.turns.stop(request.queue, request.behalf, gone.charge)
            self.freed()
        else:
            self.tree.use.leave(request.queue, self.charges.of(request.shape))
            if any(r.gang == gang.key for r in self.reservations):
                self.freed()
        self.turns.leave(request.queue, request.behalf)
        if gang.key not in self.registry.gangs:
            self.passed.pop(gang.key, None)
