"""Defragment action: move a few small requests so that a request for whole devices fits.

Theory of operation. If a request for whole devices fits on no node, each node gets a cost: the device milli in use on the
devices that would have to be cleared (those with the most free), plus ``move_cost_milli`` per request on them, computed for all
nodes at once from the resident arrays. The cheapest few nodes are tried: all requests on the wanted devices are taken off, the
new request is placed there, and then the others are placed again by the policy, the largest first. If all of them fit the
result is kept, else the transaction is rolled back. Requests that are not movable or not evictable, that have run too short,
that have a higher priority, or that use at least as many whole devices as the new request are never moved, and nodes without
movable requests are skipped. At a load of 0.95, a few moves per hundred arrivals admit nearly all requests for 8 devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calabash.sched.actions.plan import Plan
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.fit import CompiledShape
from calabash.sched.cluster.placer import ClusterPlacer
from calabash.sched.cluster.shape import WHOLE_MILLI, NodePlacement, Shape
from calabash.sched.cluster.transaction import Transaction
from calabash.sched.decisions import Request, Running
from calabash.sched.state import SchedulerState

NODES_TRIED = 4
CANDIDATES_MAX = 64
IMPOSSIBLE = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """A running request that may be moved.

    Args:
        movable: the request may be moved to make room for the new request. The caller has checked its priority and run
            time.
    """

    id: str
    shape: Shape
    placement: NodePlacement
    movable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Placement of the new request, and the moves that it needs.

    Args:
        moved: moved requests with their new placements, in the order of placement.
    """

    placement: NodePlacement
    moved: tuple[tuple[Occupant, NodePlacement], ...]


def node_costs(
    cluster: Cluster, compiled: CompiledShape, *, moves_max: int, move_cost_milli: int
) -> npt.NDArray[np.int64]:
    """Return for each node the cost, in device milli, of clearing the devices that a shape needs there.

    The cost of a node is IMPOSSIBLE if the shape cannot fit there, if nothing has to be moved, or if clearly
    more than ``moves_max`` requests would have to be moved.

    Args:
        moves_max: most requests that may be moved.
        move_cost_milli: cost of a move in addition to the device milli that it moves.
    """
    shape = compiled.shape
    count = shape.gpu_count
    usable = np.arange(cluster.width) < cluster.gpu_count[:, None]
    if compiled.device_static is not None:
        usable &= compiled.device_static
    if cluster.has_unhealthy:
        usable &= cluster.gpu_healthy
    if cluster.has_modes:
        usable &= ~cluster.gpu_pinned | (cluster.gpu_mode == compiled.mode)
    free = np.where(usable, cluster.gpu_free_milli, -1)
    wanted = np.argsort(-free, axis=1, kind="stable")[:, :count]
    in_use = count * WHOLE_MILLI - np.take_along_axis(free, wanted, axis=1).sum(axis=1)
    pods = np.take_along_axis(cluster.gpu_users, wanted, axis=1).sum(axis=1)
    possible = usable.sum(axis=1) >= count
    possible &= (cluster.cpu_milli >= shape.cpu_milli) & (cluster.memory_mib >= shape.memory_mib)
    possible &= (pods >= 1) & (pods <= moves_max * count) & cluster.schedulable
    if compiled.static is not None:
        possible &= compiled.static
    return np.where(possible, in_use + move_cost_milli * pods, IMPOSSIBLE).astype(np.int64)


def find_moves(
    transaction: Transaction,
    placer: ClusterPlacer,
    shape: Shape,
    occupants: Callable[[int], Iterable[Occupant]],
    *,
    moves_max: int,
    cost_max_milli: int = 16_000,
    move_cost_milli: int = 200,
    nodes_tried: int = NODES_TRIED,
    rows: Sequence[int] | None = None,
) -> Moves | None:
    """Find a placement for ``shape`` by moving at most ``moves_max`` requests of one node.

    Args:
        occupants: returns the requests that run on a node, by its row.
        cost_max_milli: highest cost (``node_costs``) of a node that is tried.
        move_cost_milli: cost of a move in addition to the device milli that it moves.
        nodes_tried: most nodes that are tried.
        rows: rows of the nodes that may be tried; None for all.

    Returns:
        The moves and the placement of the shape, applied in the transaction. None, with nothing changed, if no node was found.
    """
    if not shape.whole or moves_max < 1 or len(placer.cluster.names) == 0 or placer.cluster.width < shape.gpu_count:
        return None
    costs = node_costs(placer.cluster, placer.compiled(shape), moves_max=moves_max, move_cost_milli=move_cost_milli)
    if rows is not None:
        others = np.ones(len(costs), np.bool_)
        others[rows] = False
        costs[others] = IMPOSSIBLE
    candidates = min(CANDIDATES_MAX, len(costs))
    cheapest = np.argpartition(costs, candidates - 1)[:candidates]
    tried = 0
    for row in cheapest[np.argsort(costs[cheapest], kind="stable")].tolist():
        if costs[row] > cost_max_milli or tried == nodes_tried:
            break
        moving = _requests_to_move(placer.cluster, placer.compiled(shape), row, list(occupants(row)))
        if not moving or len(moving) > moves_max or not _host_suffices(placer.cluster, shape, row, moving):
            continue
        tried += 1
        moves = _try_moves(transaction, placer, shape, row, moving)
        if moves is not None:
            return Moves(placement=moves[0], moved=moves[1])
    return None


def _host_suffices(cluster: Cluster, shape: Shape, row: int, moving: list[Occupant]) -> bool:
    """Return True if a node has enough CPU and host memory for the shape once the requests in ``moving`` have left."""
    cpu_milli = int(cluster.cpu_free_milli[row]) + sum(o.shape.cpu_milli for o in moving)
    memory_mib = int(cluster.memory_free_mib[row]) + sum(o.shape.memory_mib for o in moving)
    return cpu_milli >= shape.cpu_milli and memory_mib >= shape.memory_mib


def _try_moves(
    transaction: Transaction, placer: ClusterPlacer, shape: Shape, row: int, moving: list[Occupant]
) -> tuple[NodePlacement, tuple[tuple[Occupant, NodePlacement], ...]] | None:
    """Release the requests in ``moving``, place the shape on the node, and then place these requests again.

    Returns the placement of the shape, and the requests that were placed elsewhere with their new placements. Returns
    None, with the transaction unchanged, if not all of them fit.
    """
    mark = transaction.mark()
    for occupant in moving:
        transaction.release(occupant.shape, occupant.placement)
    placement = placer.choose_on(shape, row)
    if placement is None:
        transaction.rollback(mark)
        return None
    transaction.place(shape, placement)
    moved = []
    for occupant in moving:
        new_placement = placer.choose(occupant.shape)
        if new_placement is None:
            transaction.rollback(mark)
            return None
        transaction.place(occupant.shape, new_placement)
        moved.append((occupant, new_placement))
    return placement, tuple((o, p) for o, p in moved if (p.node, p.devices) != (o.placement.node, o.placement.devices))


def _requests_to_move(
    cluster: Cluster, compiled: CompiledShape, row: int, on_node: list[Occupant]
) -> list[Occupant] | None:
    """Return the requests that must leave a node so that its emptiest devices are idle, the largest request first.

    As many devices are chosen as the shape needs: those with the most free compute that have no request which may not
    be moved. The result is None if the node has too few such devices.
    """
    count = int(cluster.gpu_count[row])
    usable = np.ones(count, np.bool_) if compiled.device_static is None else compiled.device_static[row, :count]
    fixed = {d for o in on_node if not _may_move(o, compiled.shape) for d in o.placement.devices}
    free = cluster.gpu_free_milli[row, :count]
    order = [d for d in np.argsort(-free, kind="stable").tolist() if usable[d] and d not in fixed]
    wanted = set(order[: compiled.shape.gpu_count])
    if len(wanted) < compiled.shape.gpu_count:
        return None
    moving = [o for o in on_node if not wanted.isdisjoint(o.placement.devices)]
    return sorted(moving, key=lambda o: (-o.shape.gpu_total_milli, o.id))


def _may_move(occupant: Occupant, shape: Shape) -> bool:
    return occupant.movable and (occupant.shape.gpu_count < shape.gpu_count or not occupant.shape.whole)


class Defragment:
    """The defragment action of one cycle. Shapes for which no moves were found are remembered until ``clear_cache``.

    Args:
        started: IDs of the requests that this round has started. They are not moved in the same round.

    Attributes:
        spared: True if some request was not moved only because this round has started it.
    """

    def __init__(self, state: SchedulerState, started: AbstractSet[str]) -> None:
        self.spared = False
        self._started = started
        self._state = state
        self._hopeless: set[tuple[int, Shape]] = set()

    def clear_cache(self) -> None:
        """Forget the shapes for which no moves were found, because placements have changed and moves may exist now."""
        self._hopeless.clear()

    def plan(self, requests: Sequence[Request]) -> Plan | None:
        """Return a plan that moves running requests so that one request can start; None if no moves are found.

        The plan is applied in the transaction. The result is None too if ``requests`` has several requests
        or a topology. Members of gangs that are bound to a domain are not moved.
        """
        state, options, request = self._state, self._state.options, requests[0]
        if len(requests) != 1 or request.topology is not None or not self.may_help(request):
            return None
        if state.now_s < request.submitted_at_s + options.defragment_wait_s:
            return None
        key = (request.priority, request.shape)
        if request.shape.gpu_count < options.defragment_gpu_count_min or key in self._hopeless:
            return None
        moves = find_moves(
            state.transaction,
            state.placer,
            request.shape,
            lambda row: [self._occupant(r, request) for r in state.registry.on_node.get(row, {}).values()],
            moves_max=self._moves_max(),
            cost_max_milli=options.defragment_cost_max_milli,
            move_cost_milli=options.move_cost_milli,
            rows=list(state.registry.movable_on),
        )
        if moves is None:
            self._hopeless.add(key)
            return None
        moved = tuple((state.registry.gang_of(o.id).running[o.id], placement) for o, placement in moves.moved)
        return Plan(placed=((request, moves.placement),), moved=moved)

    def may_help(self, request: Request) -> bool:
        """Return True if defragmentation is on, and the request is for whole devices."""
        return self._moves_max() > 0 and bool(self._state.registry.movable_on) and request.shape.whole

    def _moves_max(self) -> int:
        return min(self._state.options.defragment_moves_max, self._state.moves_left)

    def _occupant(self, running: Running, request: Request) -> Occupant:
        options, other = self._state.options, running.request
        rest_s = max(options.min_run_time_s, options.defragment_rest_s)
        rested = running.started_at_s + rest_s <= self._state.now_s
        bound = other.topology is not None and other.topology.binding
        movable = other.movable and other.evictable and not (other.guarded or bound)
        movable = movable and rested and other.priority <= request.priority
        if movable and other.id in self._started:
            self.spared, movable = True, False
        return Occupant(id=other.id, shape=other.shape, placement=running.placement, movable=movable)
