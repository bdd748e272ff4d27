"""The units that may go for one gang, by node and by device.

Theory of operation. A pool follows a selection of rows of the ``UnitTable``. ``follow`` compares the selection with the last
one and computes anew only what is known of the nodes where it differs, so that the plans of a cycle share one pool and each
pays for what the plan before it has changed. Trials of a plan on a node are kept too: they hold until the selection on the
node changes or something is placed or released there (``Board.changes``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

import numpy as np

from calabash.sched.cluster.columns import Bools, Floats, Ints
from calabash.sched.decisions import GangKey
from calabash.sched.queues.gang import Unit
from calabash.sched.queues.unit_table import UNRANKED, UnitTable

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One way to make room on one node. ``rank`` compares what must go: the most valuable unit first."""

    units: tuple[Unit, ...]
    gpu_milli: float
    slices: int
    rank: tuple[tuple[int, int, float, int], ...]


class UnitPool:
    """See the module's description.

    Args:
        unit: the unit of a row.

    Attributes:
        first: [N] smallest rank of the units on a node, ``UNRANKED`` where there are none.
        fewest: [N] slices of the unit that has fewest of those on a node.
        leaving: [N, G] how many placements the units have on a device.
        shares: [N, G] sum over the units on a device of the unit's slices divided by its devices on the node.
        slices: [N, G] sum over the units on a device of the unit's slices, on all devices.
    """

    def __init__(self, table: UnitTable, nodes: int, width: int, unit: Callable[[int], Unit]) -> None:
        self.table = table
        self._unit = unit
        self._nodes, self._columns = nodes, width + 1  # the last column is for units without devices
        self._generation = table.generation
        self._ranking = table.ranking
        self._chosen = self._all = np.zeros(0, np.bool_)
        self._marks = np.zeros(0, np.bool_)
        self.first: Ints = np.full(nodes, UNRANKED)
        self.fewest: Ints = np.full(nodes, UNRANKED)
        self._leaving: Ints = np.zeros((nodes, self._columns), np.int64)
        self._shares: Floats = np.zeros((nodes, self._columns))
        self._slices: Ints = np.zeros((nodes, self._columns), np.int64)
        self.leaving, self.shares, self.slices = (a[:, :width] for a in (self._leaving, self._shares, self._slices))
        self._versions: Ints = np.zeros(nodes, np.int64)
        self._on: dict[int, list[Unit]] = {}
        self._surplus: dict[GangKey, list[Unit]] = {}
        self._kept: dict[Hashable, Any] = {}

    def follow(self, chosen: Bools, marks: Bools) -> bool:
        """Be about these rows from now on. Returns False, with nothing done, if the rows have got other numbers.

        Args:
            chosen: not changed afterwards: the same object says that nothing has changed.
            marks: which rows are in quota: units say so.
        """
        if self._generation != self.table.generation:
            return False
        if chosen is self._all is self._chosen:
            return True
        self._all = chosen
        self._follow(chosen, marks)
        return True

    def without(self, gone: Iterable[Unit]) -> None:
        """Be about the selection without these units from now on, but for the surplus of gangs."""
        rows = [self.table.row(unit) for unit in gone]
        if not rows and self._chosen is self._all:
            return
        chosen = self._all.copy() if rows else self._all
        chosen[rows] = False
        self._follow(chosen, self._marks)

    @property
    def size(self) -> int:
        """Return how many units the selection has."""
        return int(np.count_nonzero(self._all))

    def least(self, resource: int) -> float:
        """Return the smallest amount of device milli (0) or CPU milli (1) that a unit has."""
        column = self.table.cpu_milli if resource else self.table.gpu_milli
        return float(column[: len(self._chosen)][self._chosen].min(initial=np.inf))

    def units(self) -> list[Unit]:
        """Return all units, those that go first at the beginning."""
        return self._in_order(np.flatnonzero(self._chosen))

    def on(self, node: int) -> list[Unit]:
        """Return the units on a node, those that go first at the beginning."""
        found = self._on.get(node)
        if found is None:
            table = self.table
            rows = table.use_row[: table.uses][table.use_node[: table.uses] == node]
            found = self._on[node] = self._in_order(np.unique(rows[self._chosen[rows]]))
        return found

    def surplus(self, gang: GangKey) -> Sequence[Unit]:
        """Return the surplus units of a gang, those that go first at the beginning."""
        found = self._surplus.get(gang)
        if found is None:
            rows = [r for r in self.table.rows_of(gang) if self._all[r] and not self.table.core[r]]
            found = self._surplus[gang] = self._in_order(np.array(rows, np.intp)) if rows else []
        return found

    def nodes(self) -> Ints:
        """Return the nodes that have units."""
        return np.flatnonzero(self.first < UNRANKED)

    def nodes_in_order(self) -> Iterator[int]:
        """Yield the nodes that have units, in the order in which their first units go."""
        nodes = self.nodes()
        ranks = self.first[nodes]
        order = np.argsort(ranks, kind="stable")
        for _, alike in groupby(order.tolist(), key=ranks.tolist().__getitem__):
            found = nodes[list(alike)].tolist()
            if len(found) > 1:  # one unit: its members say which is the first
                members = [m.placement.node for m in self.on(found[0])[0].members]
                found.sort(key=members.index)
            yield from found

    def version(self, node: int) -> int:
        """Return a number that changes with the selection on a node."""
        return self._versions.item(node)

    @property
    def versions(self) -> Ints:
        """Return the versions of all nodes; a view."""
        return self._versions

    def kept(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what was made for a key, or make it and keep it as long as the pool."""
        if key not in self._kept:
            self._kept[key] = make()
        found: T = self._kept[key]
        return found

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _follow(self, chosen: Bools, marks: Bools) -> None:
        table = self.table
        table.rank(chosen)
        if self._ranking != table.ranking:
            self._ranking = table.ranking
            changed = np.ones(self._nodes, np.bool_)
        else:
            old = np.zeros(len(chosen), np.bool_)
            old[: len(self._chosen)] = self._chosen
            differ = old ^ chosen
            differ[: len(self._marks)] |= chosen[: len(self._marks)] & (self._marks ^ marks[: len(self._marks)])
            changed = np.zeros(self._nodes, np.bool_)
            if differ.any():
                changed[table.use_node[: table.uses][differ[table.use_row[: table.uses]]]] = True
        self._chosen, self._marks = chosen, marks.copy()
        if changed.any():
            self._renew(changed)

    def _in_order(self, rows: Ints) -> list[Unit]:
        return [self._unit(row) for row in rows[np.argsort(self.table.rank_of[rows])].tolist()]

    def _renew(self, changed: Bools) -> None:
        """Compute anew what is known of some nodes."""
        table, size = self.table, self.table.uses
        nodes, rows = table.use_node[:size], table.use_row[:size]
        at = np.flatnonzero(changed[nodes] & self._chosen[rows])
        nodes, rows = nodes[at], rows[at]
        self.first[changed] = self.fewest[changed] = UNRANKED
        np.minimum.at(self.first, nodes, table.rank_of[rows])
        np.minimum.at(self.fewest, nodes, table.slices[rows])
        places = np.cumsum(changed) - 1  # of a node among those that changed
        count = int(places[-1]) + 1
        flat = places[nodes] * self._columns + table.use_device[:size][at] % self._columns  # -1 is the last one
        for sums, values in (
            (self._leaving, table.use_count),
            (self._shares, table.use_share),
            (self._slices, table.use_slices),
        ):
            found = np.bincount(flat, weights=values[:size][at], minlength=count * self._columns)
            sums[changed] = found.reshape(count, self._columns)
        self._versions[changed] += 1
        for node in np.flatnonzero(changed).tolist() if len(self._on) else ():
            self._on.pop(node, None)
        self._surplus.clear()
