"""Defragmentation on demand: move a few small requests so that a large one fits.

Theory of operation. When a request for whole devices fits nowhere although enough is free in sum, each node has a
price: the device milli in use on the devices that it would have to empty (those with the most free), plus
``move_cost_milli`` per request on them, computed for all nodes at once from the resident arrays. The cheapest few
nodes are tried: everything on the wanted devices is taken off, the newcomer is put there, and then the rest is placed
anew by the same policy, the largest first; only if all of it fits is the result kept, else the board is rolled back.
Requests that are pinned or may not be evicted, that run too short, that have a higher priority, or that want as many
devices as the newcomer are never moved, and only nodes with others are looked at. Under churn at load 0.95 this is
worth more than any score: a few moves per hundred arrivals admit nearly all 8-device requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calabash.sched.actions.plan import Plan
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.board import Board
from calabash.sched.cluster.fit import Compiled
from calabash.sched.cluster.room import ClusterRoom
from calabash.sched.cluster.shape import WHOLE_MILLI, NodePlacement, Shape
from calabash.sched.decisions import Request, Running
from calabash.sched.state import SchedulerState

NODES_TRIED = 4
NODES_LOOKED_AT = 64
IMPOSSIBLE = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """A running request as far as moving it matters; ``movable`` already includes priority and run time."""

    id: str
    shape: Shape
    placement: NodePlacement
    movable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Where the newcomer goes, and who moves where, in the order in which they were placed."""

    placement: NodePlacement
    moved: tuple[tuple[Occupant, NodePlacement], ...]
    cost_milli: int


def node_costs(cluster: Cluster, compiled: Compiled, *, moves_max: int, move_cost_milli: int) -> npt.NDArray[np.int64]:
    """[N] price of emptying the devices that the shape wants; IMPOSSIBLE where it cannot fit or too many must move."""
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
    board: Board,
    room: ClusterRoom,
    shape: Shape,
    occupants: Callable[[int], Iterable[Occupant]],
    *,
    moves_max: int,
    cost_max_milli: int = 16_000,
    move_cost_milli: int = 200,
    nodes_tried: int = NODES_TRIED,
    rows: Sequence[int] | None = None,
) -> Moves | None:
    """Make room for ``shape`` by moving at most ``moves_max`` requests.

    Args:
        occupants: what runs on a node, by its row.
        cost_max_milli: highest price of a node that is still tried.
        rows: the nodes to be looked at; None: all.

    Returns:
        On success the board holds the moved at their new places and the newcomer at its own; on None it is unchanged.
    """
    if not shape.whole or moves_max < 1 or len(room.cluster.names) == 0 or room.cluster.width < shape.gpu_count:
        return None
    costs = node_costs(room.cluster, room.compiled(shape), moves_max=moves_max, move_cost_milli=move_cost_milli)
    if rows is not None:
        others = np.ones(len(costs), np.bool_)
        others[rows] = False
        costs[others] = IMPOSSIBLE
    looked_at = min(NODES_LOOKED_AT, len(costs))
    cheapest = np.argpartition(costs, looked_at - 1)[:looked_at]
    tried = 0
    for row in cheapest[np.argsort(costs[cheapest], kind="stable")].tolist():
        if costs[row] > cost_max_milli or tried == nodes_tried:
            break
        leaving = _leaving(room.cluster, room.compiled(shape), row, list(occupants(row)))
        if not leaving or len(leaving) > moves_max or not _host_has_room(room.cluster, shape, row, leaving):
            continue
        tried += 1
        moves = _empty(board, room, shape, row, leaving)
        if moves is not None:
            return Moves(placement=moves[0], moved=moves[1], cost_milli=int(costs[row]))
    return None


def _host_has_room(cluster: Cluster, shape: Shape, row: int, leaving: list[Occupant]) -> bool:
    """CPU and memory of the node suffice once these have left; what holds no device stays where it is."""
    cpu_milli = int(cluster.cpu_free_milli[row]) + sum(o.shape.cpu_milli for o in leaving)
    memory_mib = int(cluster.memory_free_mib[row]) + sum(o.shape.memory_mib for o in leaving)
    return cpu_milli >= shape.cpu_milli and memory_mib >= shape.memory_mib


def _empty(
    board: Board, room: ClusterRoom, shape: Shape, row: int, leaving: list[Occupant]
) -> tuple[NodePlacement, tuple[tuple[Occupant, NodePlacement], ...]] | None:
    mark = board.mark()
    for occupant in leaving:
        board.release(occupant.shape, occupant.placement)
    placement = room.choose_on(shape, row)
    if placement is None:
        board.rollback(mark)
        return None
    board.place(shape, placement)
    moved = []
    for occupant in leaving:
        place = room.choose(occupant.shape)
        if place is None:
            board.rollback(mark)
            return None
        board.place(occupant.shape, place)
        moved.append((occupant, place))
    return placement, tuple((o, p) for o, p in moved if (p.node, p.devices) != (o.placement.node, o.placement.devices))


def _leaving(cluster: Cluster, compiled: Compiled, row: int, here: list[Occupant]) -> list[Occupant] | None:
    """Who must leave the devices with the most free, the largest first; None when somebody there may not."""
    count = int(cluster.gpu_count[row])
    usable = np.ones(count, np.bool_) if compiled.device_static is None else compiled.device_static[row, :count]
    fixed = {d for o in here if not _may_move(o, compiled.shape) for d in o.placement.devices}
    free = cluster.gpu_free_milli[row, :count]
    order = [d for d in np.argsort(-free, kind="stable").tolist() if usable[d] and d not in fixed]
    wanted = set(order[: compiled.shape.gpu_count])
    if len(wanted) < compiled.shape.gpu_count:
        return None
    leaving = [o for o in here if not wanted.isdisjoint(o.placement.devices)]
    return sorted(leaving, key=lambda o: (-o.shape.gpu_total_milli, o.id))


def _may_move(occupant: Occupant, shape: Shape) -> bool:
    return occupant.movable and (occupant.shape.gpu_count < shape.gpu_count or not occupant.shape.whole)


class Defragment:
    """The action for one cycle; what no moves help stays so until something is freed.

    Args:
        begun: requests that this cycle has started, which it does not move.

    Attributes:
        spared: whether something was not moved for that reason alone.
    """

    def __init__(self, state: SchedulerState, begun: AbstractSet[str]) -> None:
        self.spared = False
        self._begun = begun
        self._state = state
        self._hopeless: set[tuple[int, Shape]] = set()

    def forget(self) -> None:
        """Places changed hands."""
        self._hopeless.clear()

    def plan(self, requests: Sequence[Request]) -> Plan | None:
        """Room for one request for whole devices by moving others."""
        state, options, request = self._state, self._state.options, requests[0]
        if len(requests) != 1 or not self.may_help(request):
            return None
        if state.now_s < request.submitted_at_s + options.defragment_wait_s:
            return None
        key = (request.priority, request.shape)
        if request.shape.gpu_count < options.defragment_gpu_count_min or key in self._hopeless:
            return None
        moves = find_moves(
            state.board,
            state.room,
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
        """Return True if something may be moved for a request, by what it asks for alone."""
        return self._moves_max() > 0 and bool(self._state.registry.movable_on) and request.shape.whole

    def _moves_max(self) -> int:
        return min(self._state.options.defragment_moves_max, self._state.moves_left)

    def _occupant(self, running: Running, request: Request) -> Occupant:
        options, asked = self._state.options, running.request
        rest_s = max(options.min_run_time_s, options.defragment_rest_s)
        ripe = running.started_at_s + rest_s <= self._state.now_s
        movable = (
            asked.movable and asked.evictable and not asked.guarded and ripe and asked.priority <= request.priority
        )
        if movable and asked.id in self._begun:
            self.spared, movable = True, False
        return Occupant(id=asked.id, shape=asked.shape, placement=running.placement, movable=movable)
