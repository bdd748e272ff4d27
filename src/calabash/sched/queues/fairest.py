"""The queue that goes next: the one of least pressure, found level by level.

Theory of operation. The pressure of a queue is a sequence of parts, one for each level of the tree from the top down
(``QueueTree.pressure``). The part of a level depends on the use of the queue of that level, and on the amount that would be
added. So the leaves whose next requests are charged one amount form a tree of branches, in which a branch has its own part,
the least key below it, and a heap of the branches below it. A start raises the use of one leaf and of those above it: their
branches become stale, and are computed anew when they are the least of a heap, as their old keys are bounds. What lowers keys,
an eviction or another leaf, is carried up to the top at once.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import Any

from calabash.sched.queues.fairshare import Amount
from calabash.sched.queues.tree import QueueTree

Key = tuple[Any, ...]
"""The part of a level, and the key below it."""


class _Branch:
    """A queue of the tree with what waits below it for one amount.

    Attributes:
        leaf: name of the leaf that goes first in the branch; "" if there is none.
        heap: keys of the branches below, each with its leaf and the version that it holds for.
        stale: the key may be larger by now. version: of the key, never used twice.
    """

    __slots__ = ("above", "amount", "heap", "is_leaf", "key", "leaf", "number", "stale", "version")

    def __init__(self, number: int, amount: Amount, above: _Branch | None, leaf: str = "") -> None:
        self.number = number
        self.amount = amount
        self.above = above
        self.leaf = leaf
        self.is_leaf = bool(leaf)
        self.heap: list[tuple[Key, str, int, _Branch]] = []
        self.key: Key = ()
        self.version = 0
        self.stale = True


class FairestFirst:
    """Leaves of a queue tree, each with the amount that its next request is charged."""

    def __init__(self, tree: QueueTree) -> None:
        self._tree = tree
        self._top = _Branch(0, Amount(), None)
        self._versions = itertools.count(1)
        self._leaves: dict[str, _Branch] = {}
        self._at: dict[int, dict[Amount, _Branch]] = {}

    def __contains__(self, queue: str) -> bool:
        return queue in self._leaves

    def amount(self, queue: str) -> Amount:
        """Return the amount that was given for a leaf last."""
        return self._leaves[queue].amount

    def put(self, queue: str, amount: Amount) -> None:
        """Add a leaf, or change its amount."""
        if queue in self._leaves:
            self.take_out(queue)
        number, *above = self._tree.form.paths[self._tree.form.index[queue]]
        branch = self._top
        for level in reversed(above):
            below = self._at.setdefault(level, {}).get(amount)
            branch = below or self._at[level].setdefault(amount, _Branch(level, amount, branch))
        leaf = self._leaves[queue] = _Branch(number, amount, branch, queue)
        self._at.setdefault(number, {})[amount] = leaf
        self._carry_up(leaf)

    def take_out(self, queue: str) -> None:
        """Remove a leaf."""
        leaf = self._leaves.pop(queue)
        del self._at[leaf.number][leaf.amount]
        leaf.version = next(self._versions)
        branch = leaf.above
        while branch is not None:
            branch.stale, branch = True, branch.above

    def first(self) -> str:
        """Return the leaf of least pressure, of equal ones the first by name; there must be one."""
        least = self._least(self._top)
        assert least is not None
        return least.leaf

    def started(self, queue: str) -> None:
        """Note that the use of a queue, and of the queues above it, has become larger."""
        for branch in self._branches_of(queue):
            branch.stale = True

    def stopped(self, queue: str) -> None:
        """Note that the use of a queue, and of the queues above it, may have become smaller."""
        for branch in self._branches_of(queue):
            self._renew(branch)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _branches_of(self, queue: str) -> Iterator[_Branch]:
        """Yield the branches of a queue and of those above it, from below."""
        for number in self._tree.form.paths[self._tree.form.index[queue]] if self._leaves else ():
            yield from self._at.get(number, {}).values()

    def _carry_up(self, branch: _Branch) -> None:
        while branch.above is not None:
            self._renew(branch)
            branch = branch.above

    def _renew(self, branch: _Branch) -> None:
        """Compute the key of a branch, and tell the branch above if it has changed."""
        before = branch.key, branch.leaf
        below: Key = ()
        branch.stale = False
        if not branch.is_leaf:
            least = self._least(branch)
            below, branch.leaf = (least.key, least.leaf) if least is not None else ((), "")
        branch.key = (*self._tree.part(branch.number, branch.amount), below) if branch.leaf else ()
        if (branch.key, branch.leaf) != before and branch.above is not None:
            branch.version = next(self._versions)
            if branch.leaf:
                heapq.heappush(branch.above.heap, (branch.key, branch.leaf, branch.version, branch))

    def _least(self, branch: _Branch) -> _Branch | None:
        """Return the branch of least key below a branch; None if there is none."""
        heap = branch.heap
        while heap:
            _, _, version, below = heap[0]
            if version != below.version:
                heapq.heappop(heap)
            elif below.stale:
                self._renew(below)
            else:
                return below
        return None
