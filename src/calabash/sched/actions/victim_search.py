"""Search for the fewest victims whose eviction lets a start group fit.

Theory of operation. For each member that does not fit, the nodes that have eligible units are tried, the cheapest lower bound
first. On a node, units are evicted in eviction order until the member fits; then every unit that can stay is restored, the most
valuable first. A second trial evicts by device, the cheapest devices first, and small cases are searched exhaustively. When all
members are placed, every unit that can stay is restored once more. A gang that borrows may evict at most ``evict_ratio_max``
times what it requests; for a gang in quota the cheapest victims that were found are taken.

A whole device can be used only when all its users are evicted, so for whole devices the fewest slices are searched for
(``freeable_devices``) over all nodes, then the fewest device milli. For slices of devices the fewest device milli are searched
for.

A trial on a node depends only on the node and its units if these units are on no other node. The pool caches such trials, so
that the next plan for the shape repeats only the trials on nodes that have changed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from calabash.sched.actions.freeable_devices import FreeableDevices, slices_of
from calabash.sched.actions.packing import place_together
from calabash.sched.actions.plan import Plan, largest_first
from calabash.sched.actions.unit_pool import Trial, UnitPool
from calabash.sched.amounts import EPSILON, Amount
from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.cluster.transaction import Transaction
from calabash.sched.decisions import Request
from calabash.sched.queues.gang import Unit

DEFAULT_RATIO = 1.2
NODES_TRIED_MAX = 24
NODES_SEEN_MAX = 256
EXHAUSTIVE_UNITS_MAX = 8


@dataclass(slots=True, kw_only=True)
class _ShapeCache:
    """Results for one shape that later plans reuse.

    Attributes:
        freeable: devices that can be freed; None unless the shape is of whole devices.
        trials: trials by node, with the versions of transaction and pool for which they are valid.
    """

    freeable: FreeableDevices | None
    trials: dict[int, tuple[tuple[int, int], Trial | None]] = field(default_factory=dict)


class _Search:
    """State of the search for the victims of one plan.

    Attributes:
        pool: units that may be evicted. evicted: units that are evicted, by ID.
        budgets: device milli (or CPU milli) that each queue can still lose; queues not in it can lose everything.
    """

    def __init__(
        self,
        transaction: Transaction,
        pool: UnitPool,
        *,
        budgets: Mapping[str, float],
        resource: int,
        ratio_max: float = math.inf,
        state: Hashable | None = None,
    ) -> None:
        self.transaction = transaction
        self.pool = pool
        self.resource = resource
        self.ratio_max = ratio_max
        self.budgets = dict(budgets)
        self.evicted: dict[str, Unit] = {}
        # With budgets a trial depends on the evictions on other nodes.
        self._state = None if budgets else state
        self._mark = transaction.mark()

    def group(self, unit: Unit) -> list[Unit]:
        """Return the units that are evicted with a unit: for a core, the surplus of its gang too."""
        with_core = self.pool.surplus(unit.gang) if unit.core else ()
        return [u for u in (*with_core, unit) if _unit_id(u) not in self.evicted]

    def evict(self, unit: Unit) -> list[Unit]:
        """Evict a unit and those of its ``group``, and return them; evict none if its queue would lose too much."""
        group = self.group(unit)
        lost = sum(u.amount[self.resource] for u in group)
        if lost > self.budgets.get(unit.queue, math.inf) + EPSILON:
            return []
        for u in group:
            for member in u.members:
                self.transaction.release(member.request.shape, member.placement)
            self._count(u, evicted=True)
        return group

    def restore(self, unit: Unit) -> bool:
        """Put an evicted unit back. Returns False if its placement is not free, or its gang's core stays evicted."""
        if not unit.core and any(u.core and u.gang == unit.gang for u in self.evicted.values()):
            return False
        mark = self.transaction.mark()
        for member in unit.members:
            if not self.transaction.placer.fits_at(member.request.shape, member.placement):
                self.transaction.rollback(mark)
                return False
            self.transaction.place(member.request.shape, member.placement)
        self._count(unit, evicted=False)
        return True

    def undo(self, mark: int, units: Iterable[Unit]) -> None:
        """Roll the transaction back to position ``mark`` of its log, after which ``units`` were evicted."""
        self.transaction.rollback(mark)
        for unit in units:
            if _unit_id(unit) in self.evicted:
                self._count(unit, evicted=False)

    def restore_all(self, units: Iterable[Unit]) -> None:
        """Restore every evicted unit whose placement is free, the last in eviction order first."""
        for unit in sorted(units, key=lambda u: u.order, reverse=True):
            if _unit_id(unit) in self.evicted:
                self.restore(unit)

    def place_evicting(self, request: Request) -> NodePlacement | None:
        """Place a request in the transaction, evicting the fewest units that are found; None if it does not fit."""
        placement = self.transaction.placer.choose(request.shape)
        if placement is None:
            placement = self._evict_for(request)
        if placement is not None:
            self.transaction.place(request.shape, placement)
        return placement

    def _evict_for(self, request: Request) -> NodePlacement | None:
        best: tuple[tuple[object, ...], int, Trial] | None = None
        found = 0
        self.pool.exclude(self.evicted.values())
        cache, touched = self._cache(request), self.transaction.nodes_since(self._mark)
        for seen, (node, least_slices) in enumerate(self._candidates(cache.freeable), 1):
            if best is not None and least_slices > best[2].slices and not best[0][0]:
                break  # all further nodes need more
            trial = self._best_on(request, node, cache, changed=node in touched)
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
            if _unit_id(unit) not in self.evicted:
                self.evict(unit)
        return self.transaction.placer.choose_on(request.shape, best[1])

    def _key(self, request: Request, trial: Trial) -> tuple[object, ...]:
        """Return the sort key of a trial: within ``ratio_max`` first, then fewest slices (whole devices), then fewest milli."""
        excessive = trial.gpu_milli > max(request.shape.gpu_total_milli, 1) * self.ratio_max + EPSILON
        if request.shape.whole:
            return (excessive, trial.slices, trial.gpu_milli, trial.rank)
        return (excessive, trial.gpu_milli, trial.rank)

    def _cache(self, request: Request) -> _ShapeCache:
        """Return the results of earlier plans for the request's shape."""
        shape = request.shape
        if self._state is None:
            return _ShapeCache(freeable=self._freeable_devices(shape))
        return self.pool.cached((shape, self._state), lambda: _ShapeCache(freeable=self._freeable_devices(shape)))

    def _freeable_devices(self, shape: Shape) -> FreeableDevices | None:
        """Return the devices that can be freed for a shape of whole devices; None for other shapes.

        Shapes that differ only in CPU and host memory share the result, because an idle device serves all of them or none.
        """
        if not (shape.whole and shape.gpu_count):
            return None

        def make() -> FreeableDevices:
            return FreeableDevices(self.transaction.placer, shape, self.pool)

        if self._state is None:
            return make()
        return self.pool.cached((FreeableDevices, replace(shape, cpu_milli=0, memory_mib=0), self._state), make)

    def _candidates(self, freeable: FreeableDevices | None) -> Iterator[tuple[int, int]]:
        """Yield the nodes to try, each with a lower bound of the slices that must be evicted there."""
        if freeable is not None:
            yield from freeable.nodes()
        else:
            for node in self.pool.nodes_in_order():
                yield node, 0

    def _best_on(self, request: Request, node: int, cache: _ShapeCache, *, changed: bool) -> Trial | None:
        """Return the best trial on a node.

        Args:
            changed: this plan has changed the node already, so the cache of trials is neither used nor updated.
        """
        versions = (self.transaction.changes.get(node, 0), self.pool.version(node))
        known = None if changed else cache.trials.get(node)
        if known is not None and known[0] == versions:
            return known[1]
        units = cache.freeable.cheapest(node) if cache.freeable is not None else ()
        trial = self._trial(request, node, units, together=True) if units else None
        trial = trial or self._cheapest_on(request, node)
        if not changed and self._is_local(node):
            cache.trials[node] = (versions, trial)
        return trial

    def _is_local(self, node: int) -> bool:
        """Return True if the units on a node, and the units that would be evicted with them, are on no other node."""
        units = self.pool.on(node)
        more = [other for unit in units if unit.core for other in self.pool.surplus(unit.gang)]
        return all(m.placement.node == node for unit in (*units, *more) for m in unit.members)

    def _cheapest_on(self, request: Request, node: int) -> Trial | None:
        units = self.pool.on(node)
        first = self._trial(request, node, units)
        asked_milli = request.shape.gpu_total_milli
        if first is None or first.gpu_milli <= asked_milli or len(units) == 1:
            return first
        second = self._trial(request, node, self._by_device(units, node))
        return first if second is None or self._key(request, first) <= self._key(request, second) else second

    @staticmethod
    def _by_device(units: Sequence[Unit], node: int) -> list[Unit]:
        """Return the units, those on the cheapest devices first.

        A device costs the milli of all units on it; of the devices of a unit the most expensive one counts.
        """
        cost: dict[int, float] = {}
        devices_of: dict[str, list[int]] = {}
        for unit in units:
            devices = [d for m in unit.members if m.placement.node == node for d in m.placement.devices]
            devices_of[_unit_id(unit)] = devices
            for device in devices:
                cost[device] = cost.get(device, 0) + unit.amount.gpu_milli
        worst = len(cost) * 10**9
        return sorted(
            units,
            key=lambda u: (max(((cost[d], d) for d in devices_of[_unit_id(u)]), default=(worst, 0)), u.order),
        )

    def _trial(self, request: Request, node: int, units: Sequence[Unit], *, together: bool = False) -> Trial | None:
        """Evict units in order until the request fits, roll back, and return the trial; None if it never fits.

        Args:
            together: the request cannot fit before all of the units are evicted.
        """
        mark = self.transaction.mark()
        evicted: list[Unit] = []
        placement = None
        for unit in units:
            if _unit_id(unit) in self.evicted:
                continue
            group = self.evict(unit)
            evicted.extend(group)
            if group and not together:
                placement = self.transaction.placer.choose_on(request.shape, node)
            if placement is not None:
                break
        if together and evicted:
            placement = self.transaction.placer.choose_on(request.shape, node)
        if placement is None:
            self.undo(mark, evicted)
            return None
        self.transaction.place(request.shape, placement)
        self.restore_all(evicted)
        victims = [u for u in evicted if _unit_id(u) in self.evicted]
        self.undo(mark, victims)
        return Trial(
            units=tuple(victims),
            gpu_milli=sum(u.amount.gpu_milli for u in victims),
            slices=slices_of(victims),
            rank=tuple(sorted((u.order for u in victims), reverse=True)),
        )

    def _count(self, unit: Unit, *, evicted: bool) -> None:
        """Record that a unit is evicted, or no longer evicted, and update the budget of its queue."""
        if evicted:
            self.evicted[_unit_id(unit)] = unit
        else:
            del self.evicted[_unit_id(unit)]
        if unit.queue in self.budgets:
            self.budgets[unit.queue] += unit.amount[self.resource] * (-1 if evicted else 1)


def find_victims(
    transaction: Transaction,
    requests: Sequence[Request],
    pool: UnitPool,
    *,
    budgets: Mapping[str, float],
    asked: Amount,
    ratio_max: float = math.inf,
    state: Hashable | None = None,
) -> Plan | None:
    """Find placements for all requests by evicting units of a pool, the fewest that are found.

    Args:
        transaction: the plan is applied in it; it is unchanged if None is returned.
        budgets: largest amount of the requested resource that a queue may lose; queues that are not named may lose everything.
        asked: sum of the charges of the requests.
        ratio_max: largest ratio of evicted to requested device milli.
        state: key under which results of evictions that were tried on a node are reused while the units there are the
            same; None if they must not be reused.
    """
    resource = 0 if asked.gpu_milli else 1
    bound = max(asked[resource], 1) * ratio_max
    if (
        len(requests) == 1
        and pool.least(resource) > bound + EPSILON
        and transaction.placer.choose(requests[0].shape) is None
    ):
        return None  # at least one unit must be evicted, and each exceeds the bound
    mark = transaction.mark()
    size = pool.size
    plan = _greedy(
        transaction,
        requests,
        _Search(transaction, pool, budgets=budgets, resource=resource, ratio_max=ratio_max, state=state),
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
        transaction.rollback(mark)
        pool.exclude(())
        plan = _exhaustive(
            transaction,
            requests,
            _Search(transaction, pool, budgets=budgets, resource=resource),
            whole=whole,
            bound=bound,
        )
    if plan is not None and sum(u.amount[resource] for u in plan.evicted) > bound + EPSILON:
        transaction.rollback(mark)
        return None
    return plan


def _greedy(transaction: Transaction, requests: Sequence[Request], search: _Search) -> Plan | None:
    mark = transaction.mark()
    placements = []
    for request in largest_first(requests):
        placement = search.place_evicting(request)
        if placement is None:
            transaction.rollback(mark)
            return None
        placements.append((request, placement))
    search.restore_all(list(search.evicted.values()))
    return Plan(placed=tuple(placements), evicted=tuple(sorted(search.evicted.values(), key=lambda u: u.order)))


def _exhaustive(
    transaction: Transaction, requests: Sequence[Request], search: _Search, *, whole: bool, bound: float
) -> Plan | None:
    """Try all sets of units, and return the plan of the cheapest set after whose eviction the requests fit; else None.

    Args:
        whole: the requests are for whole devices, so the cheapest set is that with the fewest slices.
        bound: amount of the requested resource that should not be exceeded; sets that have more are tried last.
    """
    subsets: dict[frozenset[str], list[Unit]] = {}
    units = search.pool.units()
    for size in range(len(units) + 1):
        for chosen in itertools.combinations(units, size):
            group = {_unit_id(u): u for unit in chosen for u in search.group(unit)}
            subsets.setdefault(frozenset(group), list(group.values()))

    def key(units: Sequence[Unit]) -> tuple[object, ...]:
        lost = sum(u.amount[search.resource] for u in units)
        fewest = slices_of(units) if whole else 0
        return (lost > bound + EPSILON, fewest, lost, sorted((u.order for u in units), reverse=True))

    ranked = sorted(subsets.values(), key=key)
    mark = transaction.mark()
    for units in ranked:
        evicted: list[Unit] = []
        for unit in units:
            if _unit_id(unit) not in search.evicted:
                evicted.extend(search.evict(unit))
        if len(evicted) == len(units):
            placed = place_together(transaction, requests)
            if placed is not None:
                return Plan(placed=placed, evicted=tuple(sorted(units, key=lambda u: u.order)))
        search.undo(mark, evicted)
    return None


def _unit_id(unit: Unit) -> str:
    return unit.members[0].request.id
