"""What the queues use and what waits in them: amounts charged to leaves and counted in all their ancestors."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.sched.queues.fairshare import RESOURCES, Amount
from calabash.sched.queues.hierarchy import Hierarchy

Table = list[list[float]]


class QueueUse:
    """Amounts per queue. ``version`` changes with the demand (what runs plus what waits), on which shares depend, and
    ``changes`` with every amount."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self.version = 0
        self.changes = 0
        self._hierarchy = hierarchy
        self._used: Table = [[0] * RESOURCES for _ in hierarchy.paths]
        self._waiting: Table = [[0] * RESOURCES for _ in hierarchy.paths]

    def wait(self, name: str, amount: Amount) -> None:
        """The amount joins what waits."""
        self._add(self._waiting, name, amount, 1)
        self.version += 1

    def leave(self, name: str, amount: Amount) -> None:
        """It waits no longer and does not run either."""
        self._add(self._waiting, name, amount, -1)
        self.version += 1

    def start(self, name: str, amount: Amount) -> None:
        """From waiting to used: the demand, and so the shares, stay."""
        self._transfer(self._waiting, self._used, name, amount)

    def stop(self, name: str, amount: Amount) -> None:
        """From used back to waiting (eviction)."""
        self._transfer(self._used, self._waiting, name, amount)

    def end(self, name: str, amount: Amount) -> None:
        """It runs no longer."""
        self._add(self._used, name, amount, -1)
        self.version += 1

    def used(self, name: str) -> Amount:
        return _amount(self._used[self._hierarchy.index[name]])

    def waiting(self, name: str) -> Amount:
        return _amount(self._waiting[self._hierarchy.index[name]])

    def used_at(self, number: int) -> list[float]:
        """The same by number, for the divisions of the tree; not to be changed."""
        return self._used[number]

    def demand_at(self, number: int, resource: int) -> float:
        """What runs plus what waits."""
        return self._used[number][resource] + self._waiting[number][resource]

    def carried_to(self, hierarchy: Hierarchy) -> QueueUse:
        """The same amounts in a tree of another form; queues that are gone must be unused."""
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
