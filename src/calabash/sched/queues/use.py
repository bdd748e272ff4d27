"""Amounts used and waiting per queue: charged to the leaf queues and counted in all their ancestors."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.sched.amounts import RESOURCES, Amount
from calabash.sched.queues.hierarchy import Hierarchy

Table = list[list[float]]


class QueueUse:
    """Amounts used and waiting, per queue.

    Attributes:
        version: changes with the demand (used plus waiting), on which shares depend.
        changes: changes with every amount.
    """

    def __init__(self, hierarchy: Hierarchy) -> None:
        self.version = 0
        self.changes = 0
        self._hierarchy = hierarchy
        self._used: Table = [[0] * RESOURCES for _ in hierarchy.paths]
        self._waiting: Table = [[0] * RESOURCES for _ in hierarchy.paths]

    def add_waiting(self, name: str, amount: Amount) -> None:
        """Add to the amount that waits in a queue."""
        self._add(self._waiting, name, amount, 1)
        self.version += 1

    def remove_waiting(self, name: str, amount: Amount) -> None:
        """Subtract from the amount that waits in a queue, for a request that was removed before it started."""
        self._add(self._waiting, name, amount, -1)
        self.version += 1

    def start(self, name: str, amount: Amount) -> None:
        """Change an amount from waiting to used. The demand, and so the shares, do not change."""
        self._transfer(self._waiting, self._used, name, amount)

    def stop(self, name: str, amount: Amount) -> None:
        """Change an amount from used back to waiting, after an eviction. The demand does not change."""
        self._transfer(self._used, self._waiting, name, amount)

    def end(self, name: str, amount: Amount) -> None:
        """Subtract from the amount that is used, for a request that has ended."""
        self._add(self._used, name, amount, -1)
        self.version += 1

    def used(self, name: str) -> Amount:
        return _amount(self._used[self._hierarchy.index[name]])

    def waiting(self, name: str) -> Amount:
        return _amount(self._waiting[self._hierarchy.index[name]])

    def used_at(self, number: int) -> list[float]:
        """Return the used amount of the queue with a number, by resource. The list must not be changed."""
        return self._used[number]

    def demand_at(self, number: int, resource: int) -> float:
        """Return the used plus the waiting amount of one resource, for the queue with a number."""
        return self._used[number][resource] + self._waiting[number][resource]

    def copy_to(self, hierarchy: Hierarchy) -> QueueUse:
        """Return a copy of the amounts for another hierarchy of queues.

        Only the amounts of leaf queues that are leaves of both hierarchies are copied. They are counted in their
        ancestors in the new hierarchy.
        """
        moved = QueueUse(hierarchy)
        moved.version = self.version + 1
        for name in self._hierarchy.leaves:
            if name in hierarchy.leaves:
                moved._add(moved._used, name, self.used(name), 1)
                moved._add(moved._waiting, name, self.waiting(name), 1)
        return moved

    def _add(self, table: Table, name: str, amount: Sequence[float], sign: int) -> None:
        path = self._hierarchy.paths[self._hierarchy.index[name]]
        self.changes += 1
        for r in range(RESOURCES):
            if change := sign * amount[r]:
                for level in path:
                    table[level][r] += change

    def _transfer(self, source: Table, target: Table, name: str, amount: Sequence[float]) -> None:
        path = self._hierarchy.paths[self._hierarchy.index[name]]
        self.changes += 1
        for r in range(RESOURCES):
            if change := amount[r]:
                for level in path:
                    source[level][r] -= change
                    target[level][r] += change


def _amount(row: Sequence[float]) -> Amount:
    return Amount(row[0], int(row[1]), int(row[2]))
