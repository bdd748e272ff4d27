"""Reference implementation of the search for victims without caches; ``calabash.sched.actions.victim_search`` decides the same.

All units are sorted and all nodes are examined for every plan. ``plain_evictions`` uses it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from calabash.sched.actions.packing import place_together
from calabash.sched.actions.plan import Plan, largest_first
from calabash.sched.amounts import EPSILON, Amount
from calabash.sched.cluster.shape import NodePlacement
from calabash.sched.cluster.transaction import Transaction
from calabash.sched.decisions import GangKey, Request
from calabash.sched.queues.gang import Unit

SETS_MAX = 256
DEFAULT_RATIO = 1.2
NODES_TRIED_MAX = 24
NODES_SEEN_MAX = 256
EXHAUSTIVE_UNITS_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """Units whose eviction lets a request fit on one node."""

    units: tuple[Unit, ...]
    gpu_milli: float
    slices: int
    rank: tuple[object, ...]


class _Search:
    """State of the search for one plan; names as in ``calabash.sched.actions.victim_search``."""

    def __init__(
        self,
        transaction: Transaction,
        eligible: Sequence[Unit],
        budgets: Mapping[str, float],
        resource: int,
        ratio_max: float = math.inf,
    ) -> None:
        self.transaction = transaction
        self.resource = resource
        self.ratio_max = ratio_max
        self.budgets = dict(budgets)
        self.order = sorted(eligible, key=lambda u: u.order)
        self.rank = {_unit_id(unit): i for i, unit in enumerate(self.order)}
        self.evicted: dict[str, Unit] = {}
        self.surplus: dict[GangKey, list[Unit]] = {}
        self.by_node: dict[int, list[Unit]] = {}
        for unit in self.order:
            if not unit.core:
                self.surplus.setdefault(unit.gang, []).append(unit)
            for node in {m.placement.node for m in unit.members}:
                self.by_node.setdefault(node, []).append(unit)

    def group(self, unit: Unit) -> list[Unit]:
        """Return the units that are evicted with a unit: for a core, the surplus of its gang too."""
        with_core = self.surplus.get(unit.gang, ()) if unit.core else ()
        return [u for u in (*with_core, unit) if _unit_id(u) not in self.evicted]

    def evict(self, unit: Unit) -> list[Unit]:
        """Release a unit and those evicted with it, and return them; none if the budget of its queue is exceeded."""
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
        """Put an evicted unit back; return False if its placement is not free or its core is evicted."""
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
        best: tuple[tuple[object, ...], int, _Trial] | None = None
        found = 0
        for seen, (node, least_slices, units) in enumerate(self._candidates(request), 1):
            if best is not None and least_slices > best[2].slices and not best[0][0]:
                break  # all further nodes need more
            trial = self._trial(request, node, units, together=True) if units else None
            trial = trial or self._cheapest_on(request, node)
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

    def _key(self, request: Request, trial: _Trial) -> tuple[object, ...]:
        """Return the sort key of a trial: within ``ratio_max`` first, then fewest slices (whole devices), then fewest milli."""
        excessive = trial.gpu_milli > max(request.shape.gpu_total_milli, 1) * self.ratio_max + EPSILON
        if request.shape.whole:
            return (excessive, trial.slices, trial.gpu_milli, trial.rank)
        return (excessive, trial.gpu_milli, trial.rank)

    def _candidates(self, request: Request) -> Iterator[tuple[int, int, Sequence[Unit]]]:
        """Yield (node, lower bound of the slices to evict, units that free enough devices or none) in the order of trials."""
        if request.shape.whole and request.shape.gpu_count:
            yield from self._freeable_devices(request)
            return
        seen: set[int] = set()
        for unit in self.order:
            if self.is_evicted(unit):
                continue
            for member in unit.members:
                node = member.placement.node
                if node not in seen:
                    seen.add(node)
                    yield node, 0, ()

    def _freeable_devices(self, request: Request) -> Iterator[tuple[int, int, Sequence[Unit]]]:
        """Yield the candidates for whole devices, with the cheapest set of devices of each node."""
        count, found = request.shape.gpu_count, []
        for node in self.by_node:
            units = [u for u in self.by_node[node] if not self.is_evicted(u)]
            if not units:
                continue
            (serves,), (users,) = self.transaction.placer.if_idle(request.shape, [node])
            on: dict[int, list[Unit]] = {d: [] for d in range(len(serves))}
            evictable_users: Counter[int] = Counter()
            shares: dict[int, float] = dict.fromkeys(on, 0.0)
            for unit in units:
                devices = [d for m in unit.members if m.placement.node == node for d in m.placement.devices]
                evictable_users.update(devices)
                for device in set(devices):
                    on[device].append(unit)
                    shares[device] += unit.slices / len(set(devices))
            freeable = [d for d in on if serves[d] and users[d] == evictable_users[d]]
            if len(freeable) < count:
                continue
            fewest = sum(sorted(int(users[d]) for d in on if serves[d])[:count])
            early = max(fewest, min(u.slices for u in units)) if fewest else 0
            by_shares = math.ceil(sum(sorted(shares[d] for d in freeable)[:count]) - 1e-9)
            least = max(by_shares, sorted(slices_of(on[d]) for d in freeable)[count - 1])
            found.append((max(early, least), self.rank[_unit_id(units[0])], node, least, freeable, on, shares))
        for _, _, node, least, freeable, on, shares in sorted(found, key=lambda f: f[:3]):
            order = sorted(freeable, key=lambda d: (shares[d], d))
            sets = [tuple(order[:count])]
            if math.comb(len(order), count) <= SETS_MAX:
                sets = list(itertools.combinations(order, count))
            yield node, least, min((self._victims(on, chosen) for chosen in sets), key=self._set_key)

    def _victims(self, on: Mapping[int, Sequence[Unit]], devices: Iterable[int]) -> list[Unit]:
        found = {_unit_id(unit): unit for device in devices for unit in on[device]}
        for unit in [u for u in found.values() if u.core]:
            found.update({_unit_id(other): other for other in self.surplus.get(unit.gang, ())})
        return sorted(found.values(), key=lambda unit: unit.order)

    def _set_key(self, units: Sequence[Unit]) -> tuple[object, ...]:
        ranks = sorted((self.rank[_unit_id(unit)] for unit in units), reverse=True)
        return (slices_of(units), sum(unit.amount.gpu_milli for unit in units), ranks)

    def is_evicted(self, unit: Unit) -> bool:
        return _unit_id(unit) in self.evicted

    def _cheapest_on(self, request: Request, node: int) -> _Trial | None:
        units = [u for u in self.by_node.get(node, ()) if _unit_id(u) not in self.evicted]
        first = self._trial(request, node, units)
        asked_milli = request.shape.gpu_total_milli
        if first is None or first.gpu_milli <= asked_milli or len(units) == 1:
            return first
        second = self._trial(request, node, self._by_device(units, node))
        return first if second is None or self._key(request, first) <= self._key(request, second) else second

    @staticmethod
    def _by_device(units: Sequence[Unit], node: int) -> list[Unit]:
        """Return the units sorted by their most expensive device, where the cost of a device is the milli of its units."""
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

    def _trial(self, request: Request, node: int, units: Sequence[Unit], *, together: bool = False) -> _Trial | None:
        """Return the trial that evicts units in order until the request fits, rolled back afterwards; None if it never fits.

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
        return _Trial(
            units=tuple(victims),
            gpu_milli=sum(u.amount.gpu_milli for u in victims),
            slices=slices_of(victims),
            rank=tuple(sorted((self.rank[_unit_id(u)] for u in victims), reverse=True)),
        )

    def _count(self, unit: Unit, *, evicted: bool) -> None:
        if evicted:
            self.evicted[_unit_id(unit)] = unit
        else:
            del self.evicted[_unit_id(unit)]
        if unit.queue in self.budgets:
            self.budgets[unit.queue] += unit.amount[self.resource] * (-1 if evicted else 1)


def find_victims(
    transaction: Transaction,
    requests: Sequence[Request],
    eligible: Sequence[Unit],
    *,
    budgets: Mapping[str, float],
    asked: Amount,
    ratio_max: float = math.inf,
) -> Plan | None:
    """Find placements for all requests by evicting the fewest of ``eligible`` that are found.

    Args:
        transaction: the plan is applied in it; it is unchanged if None is returned.
        budgets: largest amount of the requested resource that a queue may lose; queues that are not named may lose everything.
        asked: sum of the charges of the requests.
        ratio_max: largest ratio of evicted to requested device milli.
    """
    resource = 0 if asked.gpu_milli else 1
    bound = max(asked[resource], 1) * ratio_max
    mark = transaction.mark()
    plan = _greedy(transaction, requests, _Search(transaction, eligible, budgets, resource, ratio_max))
    whole = all(r.shape.whole and r.shape.gpu_count for r in requests)
    exact = len(requests) == 1 or len(eligible) > EXHAUSTIVE_UNITS_MAX
    if (
        plan is not None
        and (exact or not whole)
        and sum(u.amount[resource] for u in plan.evicted) <= asked[resource] * DEFAULT_RATIO
    ):
        return plan
    if len(eligible) <= EXHAUSTIVE_UNITS_MAX:
        transaction.rollback(mark)
        plan = _exhaustive(
            transaction, requests, _Search(transaction, eligible, budgets, resource), whole=whole, bound=bound
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
    """Return the plan of the cheapest set of units after whose eviction the requests fit, trying all sets; else None."""
    subsets: dict[frozenset[str], list[Unit]] = {}
    for size in range(len(search.order) + 1):
        for chosen in itertools.combinations(search.order, size):
            group = {_unit_id(u): u for unit in chosen for u in search.group(unit)}
            subsets.setdefault(frozenset(group), list(group.values()))

    def key(units: Sequence[Unit]) -> tuple[object, ...]:
        lost = sum(u.amount[search.resource] for u in units)
        fewest = slices_of(units) if whole else 0
        return (lost > bound + EPSILON, fewest, lost, sorted((search.rank[_unit_id(u)] for u in units), reverse=True))

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


def slices_of(units: Iterable[Unit]) -> int:
    return sum(unit.slices for unit in units)


def _unit_id(unit: Unit) -> str:
    return unit.members[0].request.id
