"""Pool of units that a gang may evict, indexed by node and device.

Theory of operation. A pool is a selection of rows of the ``UnitTable``. ``select`` compares the new selection with the last one
and updates only the nodes where they differ. So the plans of a cycle share one pool, and each pays only for the changes since
the plan before it. Trials of a plan on a node are cached in the pool too; they are valid until the selection on the node
changes or something is placed or released there (``Transaction.changes``).
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
    """Result of a trial eviction: the units whose eviction lets a request fit on one node.

    Args:
        gpu_milli, slices: device milli and slices of all of these units together.
        rank: the ``Unit.order`` of each unit, the most valuable unit first. Of trials of equal cost the one with the
            smallest rank is chosen.
    """

    units: tuple[Unit, ...]
    gpu_milli: float
    slices: int
    rank: tuple[tuple[int, int, float, int], ...]


class UnitPool:
    """Selection of the units that a gang may evict, with sums by node and device for the search for victims.

    The rank of a unit is its position in the eviction order.

    Args:
        table: table of all running units, from which ``select`` selects rows.
        nodes, width: number of nodes, and most devices of a node.
        unit: function that returns the unit of a row of the table, with ``in_quota`` set.

    Attributes:
        first: by node, the smallest rank of the units there; ``UNRANKED`` for nodes without units.
        fewest: by node, the smallest number of slices of a unit there; ``UNRANKED`` for nodes without units.
        evictable_users: by node and device, the number of placements that the units have there.
        slices: by node and device, the sum of the slices of the units there. All slices of a unit count, also those on
            other devices.
        shares: as ``slices``, with the slices of each unit divided by the number of its devices on the node.
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
        self._evictable_users: Ints = np.zeros((nodes, self._columns), np.int64)
        self._shares: Floats = np.zeros((nodes, self._columns))
        self._slices: Ints = np.zeros((nodes, self._columns), np.int64)
        self.evictable_users, self.shares, self.slices = (
            a[:, :width] for a in (self._evictable_users, self._shares, self._slices)
        )
        self._versions: Ints = np.zeros(nodes, np.int64)
        self._on: dict[int, list[Unit]] = {}
        self._surplus: dict[GangKey, list[Unit]] = {}
        self._cache: dict[Hashable, Any] = {}

    def select(self, chosen: Bools, marks: Bools) -> bool:
        """Replace the selection by some rows of the table.

        Returns False, with nothing changed, if the rows of the table were renumbered.

        Args:
            chosen: selected rows. The array must not be changed afterwards: the same object is taken as an unchanged selection.
            marks: for each row, True if the unit is in quota.
        """
        if self._generation != self.table.generation:
            return False
        if chosen is self._all is self._chosen:
            return True
        self._all = chosen
        self._update(chosen, marks)
        return True

    def exclude(self, units: Iterable[Unit]) -> None:
        """Leave some units out of the selection, until the next call of ``exclude``.

        ``surplus`` and ``size`` still include them.
        """
        rows = [self.table.row(unit) for unit in units]
        if not rows and self._chosen is self._all:
            return
        chosen = self._all.copy() if rows else self._all
        chosen[rows] = False
        self._update(chosen, self._marks)

    @property
    def size(self) -> int:
        """Return the number of selected units, excluded ones included."""
        return int(np.count_nonzero(self._all))

    def least(self, resource: int) -> float:
        """Return the smallest amount of a resource that a selected unit has; infinite if no units are selected.

        Args:
            resource: 0 for device milli, 1 for CPU milli.
        """
        column = self.table.cpu_milli if resource else self.table.gpu_milli
        return float(column[: len(self._chosen)][self._chosen].min(initial=np.inf))

    def units(self) -> list[Unit]:
        """Return all selected units in eviction order."""
        return self._in_order(np.flatnonzero(self._chosen))

    def on(self, node: int) -> list[Unit]:
        """Return the selected units on a node in eviction order."""
        found = self._on.get(node)
        if found is None:
            table = self.table
            rows = table.use_row[: table.uses][table.use_node[: table.uses] == node]
            found = self._on[node] = self._in_order(np.unique(rows[self._chosen[rows]]))
        return found

    def rows_on(self, nodes: Ints) -> Bools:
        """Return a mask of the rows of the table whose units are selected and have members on some nodes."""
        table, wanted = self.table, np.zeros(self._nodes, np.bool_)
        wanted[nodes] = True
        mask = np.zeros(len(self._all), np.bool_)
        mask[table.use_row[: table.uses][wanted[table.use_node[: table.uses]]]] = True
        return mask & self._all

    def surplus(self, gang: GangKey) -> Sequence[Unit]:
        """Return the selected surplus units of a gang in eviction order."""
        found = self._surplus.get(gang)
        if found is None:
            rows = [r for r in self.table.rows_of(gang) if self._all[r] and not self.table.core[r]]
            found = self._surplus[gang] = self._in_order(np.array(rows, np.intp)) if rows else []
        return found

    def nodes(self) -> Ints:
        """Return the rows of the nodes that have selected units."""
        return np.flatnonzero(self.first < UNRANKED)

    def nodes_in_order(self) -> Iterator[int]:
        """Yield the rows of the nodes that have selected units, in the eviction order of the first unit on each."""
        nodes = self.nodes()
        ranks = self.first[nodes]
        order = np.argsort(ranks, kind="stable")
        for _, same_rank in groupby(order.tolist(), key=ranks.tolist().__getitem__):
            found = nodes[list(same_rank)].tolist()
            if len(found) > 1:  # nodes of one unit: sort them by the order of its members
                members = [m.placement.node for m in self.on(found[0])[0].members]
                found.sort(key=members.index)
            yield from found

    def version(self, node: int) -> int:
        """Return a number that increases when the selection on a node changes, to tell if cached results are valid."""
        return self._versions.item(node)

    @property
    def versions(self) -> Ints:
        """Return the ``version`` of all nodes. The array is the internal one and must not be changed."""
        return self._versions

    def cached(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the object that the pool caches for a key, such as the trials for a shape.

        If there is none, it is created with ``make`` first.
        """
        if key not in self._cache:
            self._cache[key] = make()
        found: T = self._cache[key]
        return found

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _update(self, chosen: Bools, marks: Bools) -> None:
        """Change the selection, and recompute the nodes where it, or ``in_quota`` of a selected unit, has changed."""
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
            self._recompute(changed)

    def _in_order(self, rows: Ints) -> list[Unit]:
        return [self._unit(row) for row in rows[np.argsort(self.table.rank_of[rows])].tolist()]

    def _recompute(self, changed: Bools) -> None:
        """Recompute the sums of some nodes, and drop their cached units."""
        table, size = self.table, self.table.uses
        nodes, rows = table.use_node[:size], table.use_row[:size]
        at = np.flatnonzero(changed[nodes] & self._chosen[rows])
        nodes, rows = nodes[at], rows[at]
        self.first[changed] = self.fewest[changed] = UNRANKED
        np.minimum.at(self.first, nodes, table.rank_of[rows])
        np.minimum.at(self.fewest, nodes, table.slices[rows])
        positions = np.cumsum(changed) - 1  # position of each node among the changed nodes
        count = int(positions[-1]) + 1
        flat = (
            positions[nodes] * self._columns + table.use_device[:size][at] % self._columns
        )  # NO_DEVICE is the last column
        for sums, values in (
            (self._evictable_users, table.use_count),
            (self._shares, table.use_share),
            (self._slices, table.use_slices),
        ):
            found = np.bincount(flat, weights=values[:size][at], minlength=count * self._columns)
            sums[changed] = found.reshape(count, self._columns)
        self._versions[changed] += 1
        for node in np.flatnonzero(changed).tolist() if len(self._on) else ():
            self._on.pop(node, None)
        self._surplus.clear()
