"""Selection of the queue that is scheduled next: the leaf queue with the least pressure.

Theory of operation. The pressure of a queue is a sequence of terms, one for each level of the tree from the top down
(``QueueTree.pressure``). The term of a level depends on the use of the queue at that level and on the amount that would be
added. The leaves whose next requests are charged the same amount therefore form a tree of branches. Each branch stores its
own term, the least key below it, and a heap of its child branches. A start increases the use of a leaf and of its ancestors,
so their keys can only grow: their branches are marked stale, and a stale key, which is a lower bound, is recomputed only when
it reaches the top of a heap. Changes that can decrease a key (an eviction, a new leaf) are propagated to the root at once.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import Any

from calabash.sched.amounts import Amount
from calabash.sched.queues.tree import QueueTree

Key = tuple[Any, ...]
"""The pressure term of a level, followed by the key of the level below."""


class _Branch:
    """Entry for one queue and one charge: the leaves below the queue whose next requests are charged this amount.

    Attributes:
        number: number of the queue. amount: charge of the next requests.
        parent: branch of the queue's parent for the same charge; None for the root.
        key: terms of the pressure from this queue down to ``first_leaf``.
        first_leaf: name of the leaf with the least pressure in the branch; "" if the branch has no leaf.
        heap: entries (key, leaf, version, branch) of the child branches; entries of old versions are dropped lazily.
        stale: True if the key may have grown since it was computed.
        version: number of the key in the parent's heap; no number is used twice.
    """

    __slots__ = ("amount", "first_leaf", "heap", "is_leaf", "key", "number", "parent", "stale", "version")

    def __init__(self, number: int, amount: Amount, parent: _Branch | None, leaf: str = "") -> None:
        self.number = number
        self.amount = amount
        self.parent = parent
        self.first_leaf = leaf
        self.is_leaf = bool(leaf)
        self.heap: list[tuple[Key, str, int, _Branch]] = []
        self.key: Key = ()
        self.version = 0
        self.stale = True


class PressureHeap:
    """Priority queue of leaf queues, ordered by their pressure with the charge of their next request added."""

    def __init__(self, tree: QueueTree) -> None:
        self._tree = tree
        self._top = _Branch(0, Amount(), None)
        self._versions = itertools.count(1)
        self._leaves: dict[str, _Branch] = {}
        self._at: dict[int, dict[Amount, _Branch]] = {}

    def __contains__(self, queue: str) -> bool:
        return queue in self._leaves

    def amount(self, queue: str) -> Amount:
        """Return the charge that was last set for a leaf queue."""
        return self._leaves[queue].amount

    def put(self, queue: str, amount: Amount) -> None:
        """Add a leaf queue, or change the charge of its next request."""
        if queue in self._leaves:
            self.remove(queue)
        number, *ancestors = self._tree.form.paths[self._tree.form.index[queue]]
        branch = self._top
        for level in reversed(ancestors):
            child = self._at.setdefault(level, {}).get(amount)
            branch = child or self._at[level].setdefault(amount, _Branch(level, amount, branch))
        leaf = self._leaves[queue] = _Branch(number, amount, branch, queue)
        self._at.setdefault(number, {})[amount] = leaf
        self._recompute_to_root(leaf)

    def remove(self, queue: str) -> None:
        """Remove a leaf queue."""
        leaf = self._leaves.pop(queue)
        del self._at[leaf.number][leaf.amount]
        leaf.version = next(self._versions)
        branch = leaf.parent
        while branch is not None:
            branch.stale, branch = True, branch.parent

    def first(self) -> str:
        """Return the leaf with the least pressure, the first by name if several are equal. The heap must not be empty."""
        least = self._least_child(self._top)
        assert least is not None
        return least.first_leaf

    def use_increased(self, queue: str) -> None:
        """Mark the keys of a queue and of its ancestors as stale, after their use has increased."""
        for branch in self._branches_of(queue):
            branch.stale = True

    def use_decreased(self, queue: str) -> None:
        """Recompute the keys of a queue and of its ancestors, after their use may have decreased."""
        for branch in self._branches_of(queue):
            self._recompute(branch)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _branches_of(self, queue: str) -> Iterator[_Branch]:
        """Yield the branches of a queue and of its ancestors, the queue first and the root last."""
        for number in self._tree.form.paths[self._tree.form.index[queue]] if self._leaves else ():
            yield from self._at.get(number, {}).values()

    def _recompute_to_root(self, branch: _Branch) -> None:
        while branch.parent is not None:
            self._recompute(branch)
            branch = branch.parent

    def _recompute(self, branch: _Branch) -> None:
        """Compute the key of a branch anew, and push it to the heap of the parent branch if it has changed."""
        before = branch.key, branch.first_leaf
        below: Key = ()
        branch.stale = False
        if not branch.is_leaf:
            least = self._least_child(branch)
            below, branch.first_leaf = (least.key, least.first_leaf) if least is not None else ((), "")
        branch.key = (*self._tree.pressure_term(branch.number, branch.amount), below) if branch.first_leaf else ()
        if (branch.key, branch.first_leaf) != before and branch.parent is not None:
            branch.version = next(self._versions)
            if branch.first_leaf:
                heapq.heappush(branch.parent.heap, (branch.key, branch.first_leaf, branch.version, branch))

    def _least_child(self, branch: _Branch) -> _Branch | None:
        """Return the child branch with the least key; None if no child has a leaf."""
        heap = branch.heap
        while heap:
            _, _, version, child = heap[0]
            if version != child.version:
                heapq.heappop(heap)
            elif child.stale:
                self._recompute(child)
            else:
                return child
        return None
