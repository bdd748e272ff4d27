"""Placement of requests that start together, wherever they fit: all of them, or none.

Theory of operation. Members are placed one by one, the largest first, each at the best placement by the policy. For members of
one shape this finds a solution whenever there is one. Members of different shapes may take each other's placements: then a
backtracking search follows. It places the members that fit on the fewest nodes first, each on the node that the fewest other
members could use, and backtracks where the rest does not fit. Of nodes in equal states only one is tried, and likewise of
devices; a state that was found hopeless is not tried again. The search is exact unless it reaches a bound: ``STEPS_MAX``
placements tried, ``NODES_MAX`` candidate nodes, or ``PLACEMENTS_MAX`` sets of devices of a node. More than ``SEARCHED_MAX``
members are placed once in that order, without backtracking.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from calabash.sched.actions.plan import Choose, Placed, largest_first
from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.cluster.transaction import Transaction
from calabash.sched.decisions import Request

STEPS_MAX = 512
NODES_MAX = 64
PLACEMENTS_MAX = 16
SEARCHED_MAX = 32
MorePlacements = Callable[[Shape], Iterator[NodePlacement]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Result of placing some requests.

    Args:
        placed: placements of all requests; None if none were found.
        cut: the search reached a bound, so there may be a solution that it has not found.
    """

    placed: tuple[Placed, ...] | None
    cut: bool = False


def pack_freely(
    transaction: Transaction,
    requests: Sequence[Request],
    choose: Choose | None = None,
    more: MorePlacements | None = None,
) -> Packing:
    """Place all requests in the transaction, or none, regardless of their topology.

    Args:
        choose: returns the best placement for a shape; None for the ``choose`` of the transaction's placer.
        more: yields placements for a shape on nodes that the placer does not consider, such as held nodes; None if
            there are none.
    """
    placed = _greedy(transaction, largest_first(requests), choose or transaction.placer.choose)
    if placed is not None or is_simple(requests):
        return Packing(placed=placed)
    search = _Search(transaction, requests, more or _no_more)
    return Packing(placed=search.run(), cut=search.cut)


def _no_more(shape: Shape) -> Iterator[NodePlacement]:
    del shape
    return iter(())


def is_simple(requests: Sequence[Request]) -> bool:
    """Return True if placing the requests one by one finds a solution whenever there is one.

    This holds for a single request. It also holds for requests of one shape without MIG that is for whole devices or
    for at most one device.
    """
    first = requests[0].shape
    simple = not first.mig_profile and (first.whole or first.gpu_count <= 1)
    return len(requests) == 1 or (simple and all(r.shape == first for r in requests))


def _greedy(transaction: Transaction, requests: Sequence[Request], choose: Choose) -> tuple[Placed, ...] | None:
    mark = transaction.mark()
    placed = []
    for request in requests:
        placement = choose(request.shape)
        if placement is None:
            transaction.rollback(mark)
            return None
        transaction.place(request.shape, placement)
        placed.append((request, placement))
    return tuple(placed)


class _Search:
    """Backtracking search for placements of requests of different shapes.

    Attributes:
        cut: the search reached one of its bounds, so there may be a solution that it has not found.
    """

    def __init__(self, transaction: Transaction, requests: Sequence[Request], more: MorePlacements) -> None:
        self.cut = False
        self._transaction = transaction
        self._more = more
        self._steps = STEPS_MAX
        shapes = list(dict.fromkeys(r.shape for r in requests))
        scarcity = {shape: transaction.placer.nodes_for(shape).size for shape in shapes}
        self._members = sorted(
            largest_first(requests), key=lambda r: (scarcity[r.shape], -r.shape.gpu_total_milli, shapes.index(r.shape))
        )
        self._shapes = shapes
        last = {request.shape: number for number, request in enumerate(self._members)}
        # For each member the other shapes among the members after it, which may need the same nodes.
        self._shapes_after = [
            [s for s in shapes if last[s] > number and s != request.shape]
            for number, request in enumerate(self._members)
        ]
        self._placed: list[Placed] = []
        self._before: dict[int, Hashable] = {}  # states of the touched nodes before they were touched
        self._touched: Counter[int] = Counter()
        self._states: dict[int, Hashable] = {}
        self._hopeless: set[Hashable] = set()

    def run(self) -> tuple[Placed, ...] | None:
        """Return the placements, applied in the transaction; None, with nothing changed, if none were found."""
        mark = self._transaction.mark()
        found = self._place(0) if len(self._members) <= SEARCHED_MAX else self._descend()
        if not found:
            self._transaction.rollback(mark)
            return None
        return tuple(self._placed)

    def _descend(self) -> bool:
        """Place all members in order, without backtracking; return False if one of them does not fit."""
        for number, request in enumerate(self._members):
            placement = next(self._candidates(number, 1), None)
            if placement is None:
                self.cut = True
                return False
            self._transaction.place(request.shape, placement)
            self._states.pop(placement.node, None)
            self._placed.append((request, placement))
        return True

    def _place(self, number: int) -> bool:
        """Place the members from index ``number`` on, with backtracking; return False if they do not fit."""
        if number == len(self._members):
            return True
        state = (number, self._state())
        if state in self._hopeless or not self._all_fit_somewhere(number):
            return False
        request = self._members[number]
        for placement in list(self._candidates(number)):
            if not self._steps:
                self.cut = True
                return False
            self._steps -= 1
            mark = self._transaction.mark()
            self._take(request, placement)
            if self._place(number + 1):
                return True
            self._undo(mark, placement)
        self._hopeless.add(state)
        return False

    def _take(self, request: Request, placement: NodePlacement) -> None:
        self._before.setdefault(placement.node, self._state_of(placement.node))
        self._transaction.place(request.shape, placement)
        self._touched[placement.node] += 1
        self._states.pop(placement.node, None)
        self._placed.append((request, placement))

    def _undo(self, mark: int, placement: NodePlacement) -> None:
        self._transaction.rollback(mark)
        self._touched[placement.node] -= 1
        self._states.pop(placement.node, None)
        self._placed.pop()

    def _all_fit_somewhere(self, number: int) -> bool:
        left = [self._members[number].shape, *self._shapes_after[number]]
        return all(self._transaction.placer.nodes_for(shape).size or next(self._more(shape), None) for shape in left)

    def _candidates(self, number: int, nodes_max: int = NODES_MAX) -> Iterator[NodePlacement]:
        """Yield the placements to try for the member with index ``number``.

        Nodes that few other members could use come first. Of several nodes or sets of devices in equal states only one
        is yielded.
        """
        shape, placer = self._members[number].shape, self._transaction.placer
        others = self._shapes_after[number]
        seen: set[Hashable] = set()
        for node in placer.least_contended(shape, others, nodes_max).tolist():
            if nodes_max > 1:
                state = self._state_of(node)
                if state in seen:
                    continue
                seen.add(state)
            placements = list(placer.placements_on(shape, node, PLACEMENTS_MAX + 1))
            self.cut |= len(placements) > PLACEMENTS_MAX
            yield from placements[:PLACEMENTS_MAX]
        self.cut |= nodes_max > 1 and placer.nodes_for(shape).size > nodes_max
        yield from self._more(shape)

    def _state(self) -> Hashable:
        """Return a key of the state of the nodes, by which a state that was found hopeless is recognised.

        Two states with the same number of placed members and equal keys have the same outcome.
        """
        touched = [node for node, count in self._touched.items() if count]
        return frozenset(Counter((self._before[node], self._state_of(node)) for node in touched).items())

    def _state_of(self, node: int) -> Hashable:
        state = self._states.get(node)
        if state is None:
            state = self._states[node] = self._transaction.placer.state_of(node, self._shapes)
        return state
