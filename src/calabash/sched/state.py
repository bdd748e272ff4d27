"""State shared by the scheduler, its cycles, actions and explanations, with the methods that keep its parts consistent.

Running requests are recorded in four places: the arrays of the cluster, the registry, the use of the queue tree, and the use
of owners. Only the methods of ``SchedulerState`` change them, and change them together.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from calabash.model.errors import CalabashError, Reason
from calabash.sched.amounts import Amount, total
from calabash.sched.charges import Charges
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.engine import Engine
from calabash.sched.cluster.placer import ClusterPlacer
from calabash.sched.cluster.scoring import PlacementPolicy
from calabash.sched.cluster.shape import SHAPES_KEPT_MAX, WHOLE_MILLI, NodePlacement, Shape
from calabash.sched.cluster.spec import NodeSpec
from calabash.sched.cluster.transaction import Transaction
from calabash.sched.decisions import GangKey, Options, Request, Running
from calabash.sched.queues.owner_order import OwnerUse
from calabash.sched.queues.registry import GangRegistry
from calabash.sched.queues.reservation import Reservation
from calabash.sched.queues.spec import QueueSpec
from calabash.sched.queues.tree import QueueTree
from calabash.sched.queues.unit_table import UnitTable
from calabash.sched.topology import GroupKey


class SchedulerState:
    """Resident state of one scheduler.

    Attributes:
        version: changes with every event that may change whether a request fits.
        unsettled: True if capacity was freed after all waiting start groups were attempted last.
        reservations: reservations of the last cycle.
        passed: gangs whose reservation has expired, each with the time until which it gets no other reservation.
        reported: the reason that was last reported for each waiting request.
        moves_left: number of requests that may still be moved; increased by the caller that carries moves out.
        refused: refusals since ``version`` changed, by the key of ``Cycle._refusal_key``.
        units: table of the running units; current after ``UnitTable.sync``.
        cut: shapes of gangs for which the last cycle reached a bound of the search before all combinations were tried.
    """

    def __init__(
        self,
        nodes: Sequence[NodeSpec],
        queues: Iterable[QueueSpec],
        *,
        policy: PlacementPolicy,
        options: Options,
        gpus_per_node_max: int = 0,
        levels: Sequence[str] = (),
    ) -> None:
        self.options = options
        self.cluster = Cluster(nodes, gpus_per_node_max=gpus_per_node_max, levels=levels)
        self.placer = ClusterPlacer(self.cluster, Engine(self.cluster, policy))
        self.transaction = Transaction(self.placer, self._rows_of_members)
        self.tree = QueueTree(queues, half_life_s=options.half_life_s)
        self.registry = GangRegistry()
        self.units = UnitTable()
        self.owners = OwnerUse()
        self.charges = Charges(self.cluster, options.fraction_memory_mib)
        self.reservations: list[Reservation] = []
        self.passed: dict[GangKey, float] = {}
        self.reported: dict[str, tuple[Reason, bool]] = {}  # reason, and whether past use delays the request
        self.refused: dict[tuple[object, ...], Reason] = {}
        self.cut: set[tuple[Hashable, ...]] = set()
        self._shapes: dict[Shape, Shape] = {}
        self.moves_left = sys.maxsize
        self.now_s = 0.0
        self.version = 0
        self.unsettled = True
        self._starts = 0
        self.count_capacity(frozenset())

    # ---- time and amounts -----------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> None:
        """Set the current time and update past use to it. Time never goes back."""
        self.now_s = max(now_s, self.now_s)
        self.tree.advance(self.now_s)

    def need(self, requests: Sequence[Request]) -> Amount:
        """Return the sum of the charges of the requests."""
        if len(requests) == 1:
            return self.charges.charge(requests[0].shape)
        return total(self.charges.charge(r.shape) for r in requests)

    def count_capacity(self, without: Iterable[int]) -> None:
        """Set the capacity that is divided among the queues to the sum over all nodes, except those in ``without``."""
        removed = set(without)
        alive = [row for row in range(self.cluster.node_count) if row not in removed]
        self.tree.set_capacity(
            Amount(
                int(self.cluster.gpu_count[alive].sum()) * WHOLE_MILLI,
                int(self.cluster.cpu_milli[alive].sum()),
                int(self.cluster.memory_mib[alive].sum()),
            )
        )
        self.freed()

    def occupy(self, shape: Shape, placement: NodePlacement) -> bool:
        """Take a placement in the arrays for a program that the scheduler does not manage.

        Returns False if the placement is not free.
        """
        try:
            self.cluster.place(shape, placement)
        except CalabashError:
            return False
        return True

    def vacate(self, shape: Shape, placement: NodePlacement) -> None:
        """Release a placement that ``occupy`` took."""
        self.cluster.release(shape, placement)

    def freed(self) -> None:
        """Note that capacity was freed: a refused request may fit now."""
        self.changed()
        self.unsettled = True

    def changed(self) -> None:
        """Drop the remembered refusals, because an event may have changed whether a request fits."""
        self.version += 1
        self.refused.clear()

    # ---- what waits and runs --------------------------------------------------------------------------------------

    def enqueue(self, request: Request) -> None:
        """Add a waiting request to its queue.

        Raises:
            CalabashError: the queue does not exist or is not a leaf, or the ID is in use.
        """
        self.tree.form.require_leaf(request.queue)
        request = self._with_known_shape(request)
        self.registry.add(request)
        self.tree.use.add_waiting(request.queue, self.charges.charge(request.shape))
        self.owners.add_request(request.queue, request.behalf)

    def _with_known_shape(self, request: Request) -> Request:
        """Return the request with its shape replaced by the object that stands for all equal shapes.

        Comparing two equal shapes is most of the cost of a look-up by shape; comparing an object with itself is cheap.
        """
        if len(self._shapes) >= SHAPES_KEPT_MAX:
            self._shapes.clear()
        shape = self._shapes.setdefault(request.shape, request.shape)
        return request if shape is request.shape else replace(request, shape=shape)

    def _rows_of_members(self, key: Hashable) -> Sequence[int]:
        """Return the rows of the nodes where members of a gang run, one for each member; see ``topology.GroupKey``."""
        if not isinstance(key, GroupKey) or key.gang not in self.registry.gangs:
            return ()
        members = [(r.placement.node, r.request) for r in self.registry.gangs[key.gang].running.values()]
        return [row for row, request in members if key.contains(request.topology, request.rank)]

    def start(self, request: Request, placement: NodePlacement, started_at_s: float) -> Running:
        """Change a waiting request to running. The caller has taken the placement in the arrays."""
        running = Running(
            request=request,
            placement=placement,
            node=self.cluster.names[placement.node],
            started_at_s=started_at_s,
            charge=self.charges.charge(request.shape),
            sequence=self._starts,
        )
        self._starts += 1
        self.registry.start(running)
        self.tree.use.start(request.queue, running.charge)
        self.owners.start(request.queue, request.behalf, running.charge)
        self.reported.pop(request.id, None)
        self.changed()
        return running

    def stop(self, request_id: str) -> Running:
        """Change a running request back to waiting. The caller releases the placement in the arrays."""
        running = self.registry.stop(request_id)
        self.tree.use.stop(running.request.queue, running.charge)
        self.owners.stop(running.request.queue, running.request.behalf, running.charge)
        self.freed()
        return running

    def move(self, running: Running, placement: NodePlacement) -> str:
        """Change the placement of a running request, which the caller has changed in the arrays. Returns the node's name."""
        node = self.cluster.names[placement.node]
        self.registry.move(replace(running, placement=placement, node=node))
        self.freed()
        return node

    def remove(self, request_id: str) -> None:
        """Remove a request, waiting or running, and release its placement.

        Raises:
            CalabashError: the ID is unknown.
        """
        gang = self.registry.gang_of(request_id)
        removed = self.registry.remove(request_id)
        self.reported.pop(request_id, None)
        request = removed.request if isinstance(removed, Running) else removed
        if isinstance(removed, Running):
            self.cluster.release(request.shape, removed.placement)
            self.tree.use.end(request.queue, removed.charge)
            self.owners.stop(request.queue, request.behalf, removed.charge)
            self.freed()
        else:
            self.tree.use.remove_waiting(request.queue, self.charges.charge(request.shape))
            if any(r.gang == gang.key for r in self.reservations):
                self.freed()
        self.owners.remove_request(request.queue, request.behalf)
        if gang.key not in self.registry.gangs:
            self.passed.pop(gang.key, None)
