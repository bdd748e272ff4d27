"""The search for victims without anything kept: what ``calabash.sched.actions.search`` must decide, in the plainest way.

All units are sorted and all nodes are looked at for every plan. ``plain_evictions`` decides with it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from calabash.sched.actions.packing import place_together
from calabash.sched.actions.plan import Plan, largest_first
from calabash.sched.cluster.board import Board
from calabash.sched.cluster.shape import NodePlacement
from calabash.sched.decisions import GangKey, Request
from calabash.sched.queues.fairshare import EPSILON, Amount
from calabash.sched.queues.gang import Unit

SETS_MAX = 256
DEFAULT_RATIO = 1.2
NODES_TRIED_MAX = 24
NODES_SEEN_MAX = 256
EXHAUSTIVE_UNITS_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """One way to make room on one node."""

    units: tuple[Unit, ...]
    gpu_milli: float
    slices: int
    rank: tuple[object, ...]


class _Search:
    """State of one plan on the board: what may go, what has gone, and how much each queue can still lose."""

    def __init__(
        self,
        board: Board,
        eligible: Sequence[Unit],
        budgets: Mapping[str, float],
        resource: int,
        ratio_max: float = math.inf,
    ) -> None:
        self.board = board
        self.resource = resource
        self.ratio_max = ratio_max
        self.budgets = dict(budgets)
        self.order = sorted(eligible, key=lambda u: u.order)
        self.rank = {_name(unit): i for i, unit in enumerate(self.order)}
        self.gone: dict[str, Unit] = {}
        self.surplus: dict[GangKey, list[Unit]] = {}
        self.by_node: dict[int, list[Unit]] = {}
        for unit in self.order:
            if not unit.core:
                self.surplus.setdefault(unit.gang, []).append(unit)
            for node in {m.placement.node for m in unit.members}:
                self.by_node.setdefault(node, []).append(unit)

    def group(self, unit: Unit) -> list[Unit]:
        """What goes with the unit: surplus members cannot stay when their core goes."""
        with_core = self.surplus.get(unit.gang, ()) if unit.core else ()
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
        best: tuple[tuple[object, ...], int, _Trial] | None = None
        found = 0
        for seen, (node, least_slices, units) in enumerate(self._candidates(request), 1):
            if best is not None and least_slices > best[2].slices and not best[0][0]:
                break  # no node from here on needs as few
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
            if _name(unit) not in self.gone:
                self.evict(unit)
        return self.board.room.choose_on(request.shape, best[1])

    def _key(self, request: Request, trial: _Trial) -> tuple[object, ...]:
        """Smaller is better: an acceptable cost, then few slices where whole devices are asked for, else little compute."""
        dear = trial.gpu_milli > max(request.shape.gpu_total_milli, 1) * self.ratio_max + EPSILON
        if request.shape.whole:
            return (dear, trial.slices, trial.gpu_milli, trial.rank)
        return (dear, trial.gpu_milli, trial.rank)

    def _candidates(self, request: Request) -> Iterator[tuple[int, int, Sequence[Unit]]]:
        """Nodes to try, a lower bound of the slices that must go there, and units that free enough devices (or none)."""
        if request.shape.whole and request.shape.gpu_count:
            yield from self._emptied(request)
            return
        seen: set[int] = set()
        for unit in self.order:
            if self.is_gone(unit):
                continue
            for member in unit.members:
                node = member.placement.node
                if node not in seen:
                    seen.add(node)
                    yield node, 0, ()

    def _emptied(self, request: Request) -> Iterator[tuple[int, int, Sequence[Unit]]]:
        """Look at the devices of every node."""
        count, found = request.shape.gpu_count, []
        for node in self.by_node:
            here = [u for u in self.by_node[node] if not self.is_gone(u)]
            if not here:
                continue
            (serves,), (users,) = self.board.room.if_idle(request.shape, [node])
            on: dict[int, list[Unit]] = {d: [] for d in range(len(serves))}
            leaving: Counter[int] = Counter()
            shares: dict[int, float] = dict.fromkeys(on, 0.0)
            for unit in here:
                devices = [d for m in unit.members if m.placement.node == node for d in m.placement.devices]
                leaving.update(devices)
                for device in set(devices):
                    on[device].append(unit)
                    shares[device] += unit.slices / len(set(devices))
            able = [d for d in on if serves[d] and users[d] == leaving[d]]
            if len(able) < count:
                continue
            fewest = sum(sorted(int(users[d]) for d in on if serves[d])[:count])
            early = max(fewest, min(u.slices for u in here)) if fewest else 0
            by_shares = math.ceil(sum(sorted(shares[d] for d in able)[:count]) - 1e-9)
            least = max(by_shares, sorted(slices_of(on[d]) for d in able)[count - 1])
            found.append((max(early, least), self.rank[_name(here[0])], node, least, able, on, shares))
        for _, _, node, least, able, on, shares in sorted(found, key=lambda f: f[:3]):
            order = sorted(able, key=lambda d: (shares[d], d))
            sets = [tuple(order[:count])]
            if math.comb(len(order), count) <= SETS_MAX:
                sets = list(itertools.combinations(order, count))
            yield node, least, min((self._leaving(on, chosen) for chosen in sets), key=self._set_key)

    def _leaving(self, on: Mapping[int, Sequence[Unit]], devices: Iterable[int]) -> list[Unit]:
        found = {_name(unit): unit for device in devices for unit in on[device]}
        for unit in [u for u in found.values() if u.core]:
            found.update({_name(other): other for other in self.surplus.get(unit.gang, ())})
        return sorted(found.values(), key=lambda unit: unit.order)

    def _set_key(self, units: Sequence[Unit]) -> tuple[object, ...]:
        ranks = sorted((self.rank[_name(unit)] for unit in units), reverse=True)
        return (slices_of(units), sum(unit.amount.gpu_milli for unit in units), ranks)

    def is_gone(self, unit: Unit) -> bool:
        return _name(unit) in self.gone

    def _cheapest_on(self, request: Request, node: int) -> _Trial | None:
        here = [u for u in self.by_node.get(node, ()) if _name(u) not in self.gone]
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

    def _trial(self, request: Request, node: int, units: Sequence[Unit], *, together: bool = False) -> _Trial | None:
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
        return _Trial(
            units=tuple(kept),
            gpu_milli=sum(u.amount.gpu_milli for u in kept),
            slices=slices_of(kept),
            rank=tuple(sorted((self.rank[_name(u)] for u in kept), reverse=True)),
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
    eligible: Sequence[Unit],
    *,
    budgets: Mapping[str, float],
    asked: Amount,
    ratio_max: float = math.inf,
) -> Plan | None:
    """Make room for all of ``requests`` by evicting the fewest of ``eligible`` that are found.

    Args:
        board: on success it holds the requests and no longer the evicted; on None it is as it was.
        budgets: how much of the asked resource a queue can lose at most; queues not named can lose everything.
        asked: what the requests are charged together.
        ratio_max: evicted over asked device milli that is acceptable.
    """
    resource = 0 if asked.gpu_milli else 1
    bound = max(asked[resource], 1) * ratio_max
    mark = board.mark()
    plan = _greedy(board, requests, _Search(board, eligible, budgets, resource, ratio_max))
    whole = all(r.shape.whole and r.shape.gpu_count for r in requests)
    exact = len(requests) == 1 or len(eligible) > EXHAUSTIVE_UNITS_MAX
    if (
        plan is not None
        and (exact or not whole)
        and sum(u.amount[resource] for u in plan.evicted) <= asked[resource] * DEFAULT_RATIO
    ):
        return plan
    if len(eligible) <= EXHAUSTIVE_UNITS_MAX:
        board.rollback(mark)
        plan = _exhaustive(board, requests, _Search(board, eligible, budgets, resource), whole=whole, bound=bound)
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
    for size in range(len(search.order) + 1):
        for chosen in itertools.combinations(search.order, size):
            group = {_name(u): u for unit in chosen for u in search.group(unit)}
            subsets.setdefault(frozenset(group), list(group.values()))

    def key(units: Sequence[Unit]) -> tuple[object, ...]:
        lost = sum(u.amount[search.resource] for u in units)
        fewest = slices_of(units) if whole else 0
        return (lost > bound + EPSILON, fewest, lost, sorted((search.rank[_name(u)] for u in units), reverse=True))

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


def slices_of(units: Iterable[Unit]) -> int:
    return sum(unit.slices for unit in units)


def _name(unit: Unit) -> str:
    return unit.members[0].request.id
