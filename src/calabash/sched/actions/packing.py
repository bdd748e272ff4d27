"""Places for requests that start together: all of them, or none.

Theory of operation. Members are placed one by one, the largest first, each at the best place by the policy. That finds places
for members of one shape whenever there are some. Unlike members may take each other's places: then a search follows. It places
the members that fit on the fewest nodes first, each on the node that the fewest other members could use, and goes back where
the rest does not fit. Nodes in equal states are tried once, devices in equal states too, and a state that was found hopeless
is not looked at again. The search is exact unless it reaches a bound: ``STEPS_MAX`` places tried, or more candidates than
``NODES_MAX`` nodes or ``PLACES_MAX`` sets of devices of a node. More than ``SEARCHED_MAX`` members are placed once in that
order, without going back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from calabash.sched.actions.plan import Choose, Placed, largest_first
from calabash.sched.cluster.board import Board
from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.decisions import Request

STEPS_MAX = 512
NODES_MAX = 64
PLACES_MAX = 16
SEARCHED_MAX = 32
MorePlaces = Callable[[Shape], Iterator[NodePlacement]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """``placed`` is None where no places were found; ``cut``: a bound was reached, so there may be some."""

    placed: tuple[Placed, ...] | None
    cut: bool = False


def place_together(board: Board, requests: Sequence[Request]) -> tuple[Placed, ...] | None:
    """Return the places that all requests took on the board; None if they do not fit, with the board as it was."""
    return pack(board, requests).placed


def pack(
    board: Board, requests: Sequence[Request], choose: Choose | None = None, more: MorePlaces | None = None
) -> Packing:
    """Place all requests on the board, or leave it as it was.

    Args:
        choose: the best place for a shape; None: by the policy, in all of the room.
        more: places beside those of the room that ``choose`` may name.
    """
    placed = _greedy(board, largest_first(requests), choose or board.room.choose)
    if placed is not None or is_exact(requests):
        return Packing(placed=placed)
    search = _Search(board, requests, more or _no_more)
    return Packing(placed=search.run(), cut=search.cut)


def _no_more(shape: Shape) -> Iterator[NodePlacement]:
    del shape
    return iter(())


def is_exact(requests: Sequence[Request]) -> bool:
    """Return True if members of one shape fit in any order or in none: they do not choose among sets of shared devices."""
    first = requests[0].shape
    simple = not first.mig_profile and (first.whole or first.gpu_count <= 1)
    return len(requests) == 1 or (simple and all(r.shape == first for r in requests))


def _greedy(board: Board, requests: Sequence[Request], choose: Choose) -> tuple[Placed, ...] | None:
    mark = board.mark()
    placed = []
    for request in requests:
        placement = choose(request.shape)
        if placement is None:
            board.rollback(mark)
            return None
        board.place(request.shape, placement)
        placed.append((request, placement))
    return tuple(placed)


class _Search:
    """Members in the order in which they are placed, and what was tried."""

    def __init__(self, board: Board, requests: Sequence[Request], more: MorePlaces) -> None:
        self.cut = False
        self._board = board
        self._more = more
        self._steps = STEPS_MAX
        shapes = list(dict.fromkeys(r.shape for r in requests))
        scarcity = {shape: board.room.nodes_for(shape).size for shape in shapes}
        self._members = sorted(
            largest_first(requests), key=lambda r: (scarcity[r.shape], -r.shape.gpu_total_milli, shapes.index(r.shape))
        )
        self._shapes = shapes
        last = {request.shape: number for number, request in enumerate(self._members)}
        # For each member the other shapes that come after it: others may want the same nodes.
        self._shapes_after = [
            [s for s in shapes if last[s] > number and s != request.shape]
            for number, request in enumerate(self._members)
        ]
        self._placed: list[Placed] = []
        self._before: dict[int, Hashable] = {}  # what touched nodes were
        self._touched: Counter[int] = Counter()
        self._states: dict[int, Hashable] = {}
        self._hopeless: set[Hashable] = set()

    def run(self) -> tuple[Placed, ...] | None:
        """Return the places, taken on the board; None if none were found."""
        mark = self._board.mark()
        found = self._place(0) if len(self._members) <= SEARCHED_MAX else self._descend()
        if not found:
            self._board.rollback(mark)
            return None
        return tuple(self._placed)

    def _descend(self) -> bool:
        """Place all in order, without going back."""
        for number, request in enumerate(self._members):
            placement = next(self._candidates(number, 1), None)
            if placement is None:
                self.cut = True
                return False
            self._board.place(request.shape, placement)
            self._states.pop(placement.node, None)
            self._placed.append((request, placement))
        return True

    def _place(self, number: int) -> bool:
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
            mark = self._board.mark()
            self._take(request, placement)
            if self._place(number + 1):
                return True
            self._give_back(mark, placement)
        self._hopeless.add(state)
        return False

    def _take(self, request: Request, placement: NodePlacement) -> None:
        self._before.setdefault(placement.node, self._state_of(placement.node))
        self._board.place(request.shape, placement)
        self._touched[placement.node] += 1
        self._states.pop(placement.node, None)
        self._placed.append((request, placement))

    def _give_back(self, mark: int, placement: NodePlacement) -> None:
        self._board.rollback(mark)
        self._touched[placement.node] -= 1
        self._states.pop(placement.node, None)
        self._placed.pop()

    def _all_fit_somewhere(self, number: int) -> bool:
        left = [self._members[number].shape, *self._shapes_after[number]]
        return all(self._board.room.nodes_for(shape).size or next(self._more(shape), None) for shape in left)

    def _candidates(self, number: int, nodes_max: int = NODES_MAX) -> Iterator[NodePlacement]:
        """Places to try for a member: on nodes that few others could use first, of equal nodes and devices one."""
        shape, room = self._members[number].shape, self._board.room
        others = self._shapes_after[number]
        seen: set[Hashable] = set()
        for node in room.least_wanted(shape, others, nodes_max).tolist():
            if nodes_max > 1:
                state = self._state_of(node)
                if state in seen:
                    continue
                seen.add(state)
            places = list(room.places_on(shape, node, PLACES_MAX + 1))
            self.cut |= len(places) > PLACES_MAX
            yield from places[:PLACES_MAX]
        self.cut |= nodes_max > 1 and room.nodes_for(shape).size > nodes_max
        yield from self._more(shape)

    def _state(self) -> Hashable:
        """Return what distinguishes this state from others with as many members placed."""
        touched = [node for node, count in self._touched.items() if count]
        return frozenset(Counter((self._before[node], self._state_of(node)) for node in touched).items())

    def _state_of(self, node: int) -> Hashable:
        state = self._states.get(node)
        if state is None:
            state = self._states[node] = self._board.room.state_of(node, self._shapes)
        return state
