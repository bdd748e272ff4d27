"""The fewest that must go so that a portion fits.

Theory of operation. For each member that finds no room, the nodes that hold eligible units are tried, cheapest lower bound
first; on a node units go in order until the member fits, then every unit that can stay is given back, most valuable first;
a second attempt takes the cheapest devices instead, and small cases are searched exhaustively. When all members are placed,
once more every unit that can stay is given back. For borrowed room at most ``evict_ratio_max`` times what is asked may be
evicted; for what is in quota the least that was found is taken.

Whole devices can only be given when everything on them has gone, so for them the fewest slices are looked for (``emptying``),
over all nodes; device milli decide between equals. For shares it is device milli first.

A trial on a node depends on the node and on the units there alone as long as these units are nowhere else. The pool keeps such
trials, so that the next plan for the shape tries again only where something has changed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from calabash.sched.actions.emptying import Emptying, slices_of
from calabash.sched.actions.packing import place_together
from calabash.sched.actions.plan import Plan, largest_first
from calabash.sched.actions.unit_pool import Trial, UnitPool
from calabash.sched.cluster.board import Board
from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.decisions import Request
from calabash.sched.queues.fairshare import EPSILON, Amount
from calabash.sched.queues.gang import Unit

DEFAULT_RATIO = 1.2
NODES_TRIED_MAX = 24
NODES_SEEN_MAX = 256
EXHAUSTIVE_UNITS_MAX = 8


@dataclass(slots=True, kw_only=True)
class _Kept:
    """Results that plans keep for one shape: devices to be freed (of shapes of whole devices), and trials by node with the
    versions for which they hold."""

    emptying: Emptying | None
    trials: dict[int, tuple[tuple[int, int], Trial | None]] = field(default_factory=dict)


class _Search:
    """State of one plan on the board: what may go, what has gone, and how much each queue can still lose."""

    def __init__(
        self,
        board: Board,
        pool: UnitPool,
        *,
        budgets: Mapping[str, float],
        resource: int,
        ratio_max: float = math.inf,
        state: Hashable | None = None,
    ) -> None:
        self.board = board
        self.pool = pool
        self.resource = resource
        self.ratio_max = ratio_max
        self.budgets = dict(budgets)
        self.gone: dict[str, Unit] = {}
        # With a budget a trial depends on what has gone elsewhere.
        self._state = None if budgets else state
        self._mark = board.mark()

    def group(self, unit: Unit) -> list[Unit]:
        """What goes with the unit: surplus members cannot stay when their core goes."""
        with_core = self.pool.surplus(unit.gang) if unit.core else ()
        return [u for u in (*with_core, unit) if _name(u) not in self.gone]

    def evict(self, unit: Unit) -> list[Unit]:
        """Take the unit (and what goes with it) off the board; nothing when its queue cannot lose that much."""
        group = self.group(unit)
        lost = sum(u.amount[self.resource] for u in group)
        if lost > self.budgets.get(unit.queue, math.inf) + EPSILON:
            return []
        for u in group:
            for member in u.members:
                self.board.release(member.request.shape, member.placement)
            self._count(u, gone=True)
        return group

    def spare(self, unit: Unit) -> bool:
        """Put the unit back where it was if that is still free."""
        if not unit.core and any(u.core and u.gang == unit.gang for u in self.gone.values()):
            return False
        mark = self.board.mark()
        for member in unit.members:
            if not self.board.room.fits_at(member.request.shape, member.placement):
                self.board.rollback(mark)
                return False
            self.board.place(member.request.shape, member.placement)
        self._count(unit, gone=False)
        return True

    def undo(self, mark: int, units: Iterable[Unit]) -> None:
        self.board.rollback(mark)
        for unit in units:
            if _name(unit) in self.gone:
                self._count(unit, gone=False)

    def spare_all(self, units: Iterable[Unit]) -> None:
        """Give back whatever can stay, the most valuable first."""
        for unit in sorted(units, key=lambda u: u.order, reverse=True):
            if _name(unit) in self.gone:
                self.spare(unit)

    def make_room(self, request: Request) -> NodePlacement | None:
        """Place one ask, evicting as little as is found; it is on the board then."""
        placement = self.board.room.choose(request.shape)
        if placement is None:
            placement = self._evict_for(request)
        if placement is not None:
            self.board.place(request.shape, placement)
        return placement

    def _evict_for(self, request: Request) -> NodePlacement | None:
        best: tuple[tuple[object, ...], int, Trial] | None = None
        found = 0
        self.pool.without(self.gone.values())
        kept, touched = self._kept(request), self.board.nodes_since(self._mark)
        emptying = kept.emptying
        for seen, (node, least_slices) in enumerate(self._candidates(emptying), 1):
            if best is not None and least_slices > best[2].slices and not best[0][0]:
                break  # no node from here on needs as few
            trial = self._best_on(request, node, kept, fresh=node in touched)
            if trial is not None:
                found += 1
                key = self._key(request, trial)
                if best is None or key < best[0]:
                    best = (key, node, trial)
                fewest = not request.shape.whole or best[2].slices <= least_slices
                if (found >= NODES_TRIED_MAX and fewest) or trial.gpu_milli <= 0:
                    break
            if best is not None and seen >= NODES_SEEN_MAX:
                break
        if best is None:
            return None
        for unit in best[2].units:
            if _name(unit) not in self.gone:
                self.evict(unit)
        return self.board.room.choose_on(request.shape, best[1])

    def _key(self, request: Request, trial: Trial) -> tuple[object, ...]:
        """Smaller is better: an acceptable cost, then few slices where whole devices are asked for, else little compute."""
        dear = trial.gpu_milli > max(request.shape.gpu_total_milli, 1) * self.ratio_max + EPSILON
        if request.shape.whole:
            return (dear, trial.slices, trial.gpu_milli, trial.rank)
        return (dear, trial.gpu_milli, trial.rank)

    def _kept(self, request: Request) -> _Kept:
        """Return what the plans before this one have learned for the shape."""
        shape = request.shape
        if self._state is None:
            return _Kept(emptying=self._emptying(shape))
        return self.pool.kept((shape, self._state), lambda: _Kept(emptying=self._emptying(shape)))

    def _emptying(self, shape: Shape) -> Emptying | None:
        """Return the devices to be freed for a shape of whole devices.

        Which devices serve it when they are idle does not depend on what it asks of the host, so shapes that differ in that
        alone share them.
        """
        if not (shape.whole and shape.gpu_count):
            return None

        def make() -> Emptying:
            return Emptying(self.board.room, shape, self.pool)

        if self._state is None:
            return make()
        return self.pool.kept((Emptying, replace(shape, cpu_milli=0, memory_mib=0), self._state), make)

    def _candidates(self, emptying: Emptying | None) -> Iterator[tuple[int, int]]:
        """Yield the nodes to try, each with a lower bound of the slices that must go there."""
        if emptying is not None:
            yield from emptying.nodes()
        else:
            for node in self.pool.nodes_in_order():
                yield node, 0

    def _best_on(self, request: Request, node: int, kept: _Kept, *, fresh: bool) -> Trial | None:
        """Return the best trial on a node.

        Args:
            fresh: the plan has changed the node, so that nothing is known of it, and nothing is worth keeping.
        """
        holds = (self.board.changes.get(node, 0), self.pool.version(node))
        known = None if fresh else kept.trials.get(node)
        if known is not None and known[0] == holds:
            return known[1]
        units = kept.emptying.cheapest(node) if kept.emptying is not None else ()
        trial = self._trial(request, node, units, together=True) if units else None
        trial = trial or self._cheapest_on(request, node)
        if not fresh and self._is_local(node):
            kept.trials[node] = (holds, trial)
        return trial

    def _is_local(self, node: int) -> bool:
        """Return True if the units on a node, and what goes with them, are nowhere else."""
        units = self.pool.on(node)
        more = [other for unit in units if unit.core for other in self.pool.surplus(unit.gang)]
        return all(m.placement.node == node for unit in (*units, *more) for m in unit.members)

    def _cheapest_on(self, request: Request, node: int) -> Trial | None:
        here = self.pool.on(node)
        first = self._trial(request, node, here)
        asked_milli = request.shape.gpu_total_milli
        if first is None or first.gpu_milli <= asked_milli or len(here) == 1:
            return first
        second = self._trial(request, node, self._by_device(here, node))
        return first if second is None or self._key(request, first) <= self._key(request, second) else second

    @staticmethod
    def _by_device(units: Sequence[Unit], node: int) -> list[Unit]:
        """Units in the order of the devices that are cheapest to empty."""
        cost: dict[int, float] = {}
        devices_of: dict[str, list[int]] = {}
        for unit in units:
            devices = [d for m in unit.members if m.placement.node == node for d in m.placement.devices]
            devices_of[_name(unit)] = devices
            for device in devices:
                cost[device] = cost.get(device, 0) + unit.amount.gpu_milli
        worst = len(cost) * 10**9
        return sorted(
            units,
            key=lambda u: (max(((cost[d], d) for d in devices_of[_name(u)]), default=(worst, 0)), u.order),
        )

    def _trial(self, request: Request, node: int, units: Sequence[Unit], *, together: bool = False) -> Trial | None:
        """Evict units in order until the request fits; ``together``: it cannot fit before all of them have gone."""
        mark = self.board.mark()
        evicted: list[Unit] = []
        placement = None
        for unit in units:
            if _name(unit) in self.gone:
                continue
            group = self.evict(unit)
            evicted.extend(group)
            if group and not together:
                placement = self.board.room.choose_on(request.shape, node)
            if placement is not None:
                break
        if together and evicted:
            placement = self.board.room.choose_on(request.shape, node)
        if placement is None:
            self.undo(mark, evicted)
            return None
        self.board.place(request.shape, placement)
        self.spare_all(evicted)
        kept = [u for u in evicted if _name(u) in self.gone]
        self.undo(mark, kept)
        return Trial(
            units=tuple(kept),
            gpu_milli=sum(u.amount.gpu_milli for u in kept),
            slices=slices_of(kept),
            rank=tuple(sorted((u.order for u in kept), reverse=True)),
        )

    def _count(self, unit: Unit, *, gone: bool) -> None:
        if gone:
            self.gone[_name(unit)] = unit
        else:
            del self.gone[_name(unit)]
        if unit.queue in self.budgets:
            self.budgets[unit.queue] += unit.amount[self.resource] * (-1 if gone else 1)


def find_victims(
    board: Board,
    requests: Sequence[Request],
    pool: UnitPool,
    *,
    budgets: Mapping[str, float],
    asked: Amount,
    ratio_max: float = math.inf,
    state: Hashable | None = None,
) -> Plan | None:
    """Make room for all of ``requests`` by evicting the fewest units of a pool that are found.

    Args:
        board: on success it holds the requests and no longer the evicted; on None it is as it was.
        budgets: how much of the asked resource a queue can lose at most; queues not named can lose everything.
        asked: what the requests are charged together.
        ratio_max: evicted over asked device milli that is acceptable.
        state: all that trials depend on beside the units, their nodes and ``ratio_max``; None: they depend on more.
    """
    resource = 0 if asked.gpu_milli else 1
    bound = max(asked[resource], 1) * ratio_max
    if len(requests) == 1 and pool.least(resource) > bound + EPSILON and board.room.choose(requests[0].shape) is None:
        return None  # one unit at least must go, and each is too much
    mark = board.mark()
    size = pool.size
    plan = _greedy(
        board, requests, _Search(board, pool, budgets=budgets, resource=resource, ratio_max=ratio_max, state=state)
    )
    whole = all(r.shape.whole and r.shape.gpu_count for r in requests)
    exact = len(requests) == 1 or size > EXHAUSTIVE_UNITS_MAX
    if (
        plan is not None
        and (exact or not whole)
        and sum(u.amount[resource] for u in plan.evicted) <= asked[resource] * DEFAULT_RATIO
    ):
        return plan
    if size <= EXHAUSTIVE_UNITS_MAX:
        board.rollback(mark)
        pool.without(())
        plan = _exhaustive(
            board, requests, _Search(board, pool, budgets=budgets, resource=resource), whole=whole, bound=bound
        )
    if plan is not None and sum(u.amount[resource] for u in plan.evicted) > bound + EPSILON:
        board.rollback(mark)
        return None
    return plan


def _greedy(board: Board, requests: Sequence[Request], search: _Search) -> Plan | None:
    mark = board.mark()
    placements = []
    for request in largest_first(requests):
        placement = search.make_room(request)
        if placement is None:
            board.rollback(mark)
            return None
        placements.append((request, placement))
    search.spare_all(list(search.gone.values()))
    return Plan(placed=tuple(placements), evicted=tuple(sorted(search.gone.values(), key=lambda u: u.order)))


def _exhaustive(
    board: Board, requests: Sequence[Request], search: _Search, *, whole: bool, bound: float
) -> Plan | None:
    """All subsets, the cheapest first: exact where there are few units. For whole devices the fewest slices are cheapest."""
    subsets: dict[frozenset[str], list[Unit]] = {}
    units = search.pool.units()
    for size in range(len(units) + 1):
        for chosen in itertools.combinations(units, size):
            group = {_name(u): u for unit in chosen for u in search.group(unit)}
            subsets.setdefault(frozenset(group), list(group.values()))

    def key(units: Sequence[Unit]) -> tuple[object, ...]:
        lost = sum(u.amount[search.resource] for u in units)
        fewest = slices_of(units) if whole else 0
        return (lost > bound + EPSILON, fewest, lost, sorted((u.order for u in units), reverse=True))

    ranked = sorted(subsets.values(), key=key)
    mark = board.mark()
    for units in ranked:
        evicted: list[Unit] = []
        for unit in units:
            if _name(unit) not in search.gone:
                evicted.extend(search.evict(unit))
        if len(evicted) == len(units):
            placed = place_together(board, requests)
            if placed is not None:
                return Plan(placed=placed, evicted=tuple(sorted(units, key=lambda u: u.order)))
        search.undo(mark, evicted)
    return None


def _name(unit: Unit) -> str:
    return unit.members[0].request.id
