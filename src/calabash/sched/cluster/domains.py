"""Domains of the network: which nodes are near each other, on ordered levels.

Theory of operation. A node has a path of names, one for each level, the outermost first. Nodes with the same first names are in
the same domain of a level. The level 0 is the whole cluster, the last level is the node itself, and the named levels are
between them. The nodes are sorted by path, in natural order of names, so that each domain of each level is a contiguous segment
of this order. The sum of any value over all domains of a level is then a difference of two entries of one cumulative sum.

A node without a name on some level shares no domain of that level, nor of the levels below, with any other node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from calabash.sched.cluster.columns import Columns, Ints, Rows
from calabash.sched.topology import NODE_LEVEL, natural_key


class Domains:
    """Domains of all nodes of a cluster. Create a new one when nodes or paths have changed (``domains_of``).

    Attributes:
        levels: names of the levels: "" for the whole cluster, the named levels, ``NODE_LEVEL``.
        rows: rows of all nodes in the order of their paths. position: index of each row in this order.
        first, last: for each level, the segments of its domains: of the first node, and after the last node.
        children: for each level, the index of the first domain below each domain, and the number of domains at the end.
    """

    def __init__(self, cluster: Columns) -> None:
        self._cluster = cluster
        self.levels = ("", *cluster.levels, NODE_LEVEL)
        named = len(cluster.levels)
        paths = [_full(path, named) for path in cluster.paths]
        keys = [(*((name == "", natural_key(name)) for name in path), (False, natural_key(cluster.names[row]), row))
                for row, path in enumerate(paths)]  # fmt: skip
        self.rows: Rows = np.array(sorted(range(len(paths)), key=keys.__getitem__), np.intp)
        count = len(paths)
        self.position: Ints = np.empty(count, np.int64)
        self.position[self.rows] = np.arange(count)
        begins: list[Ints] = [np.zeros(min(1, count), np.int64)]
        new = np.zeros(count, np.bool_)
        ordered = [paths[row] for row in self.rows.tolist()]
        for level in range(named):
            names = [path[level] for path in ordered]
            new = new | np.array([not n or i == 0 or n != names[i - 1] for i, n in enumerate(names)], np.bool_)
            begins.append(np.flatnonzero(new))
        begins.append(np.arange(count))
        self.first: tuple[Ints, ...] = tuple(begins)
        self.last: tuple[Ints, ...] = tuple(np.append(starts[1:], count) if count else starts for starts in begins)
        self.children: tuple[Ints, ...] = tuple(
            np.append(np.searchsorted(below, above), len(below)) for above, below in pairwise(begins)
        )

    @property
    def last_level(self) -> int:
        """Return the number of the level whose domains are single nodes."""
        return len(self.levels) - 1

    def level(self, name: str) -> int | None:
        """Return the number of a named level; None if it does not exist."""
        return self.levels.index(name) if name and name in self.levels else None

    def sums(self, level: int, values: Ints) -> Ints:
        """Return the sum of a value over each domain of a level.

        Args:
            values: value of each node, in the order of ``rows``.
        """
        if level == self.last_level:
            return values
        total = np.concatenate((np.zeros(1, np.int64), np.cumsum(values)))
        sums: Ints = total[self.last[level]] - total[self.first[level]]
        return sums

    def domain(self, level: int, row: int) -> int:
        """Return the domain of a level to which a node belongs."""
        return int(np.searchsorted(self.first[level], self.position[row], side="right")) - 1

    def rows_in(self, level: int, domain: int) -> Rows:
        """Return the rows of the nodes of a domain, in the order of their paths."""
        return self.rows[self.first[level][domain] : self.last[level][domain]]

    def inside(self, level: int, outer_level: int, outer: int) -> slice:
        """Return the range of the domains of a level that are in a domain of the same or an outer level."""
        low = int(np.searchsorted(self.first[level], self.first[outer_level][outer]))
        high = int(np.searchsorted(self.first[level], self.last[outer_level][outer]))
        return slice(low, high)

    def name(self, level: int, domain: int) -> str:
        """Return the name of a domain: its path without the outermost levels that all nodes share."""
        row = int(self.rows[self.first[level][domain]])
        if level == self.last_level:
            return self._cluster.names[row]
        path = _full(self._cluster.paths[row], len(self.levels) - 2)[:level]
        return "/".join(path) if all(path) else self._cluster.names[row]

    def distance(self, one: int, other: int) -> int:
        """Return the number of hops between two nodes in the tree of domains: 0 for the same node, 2 in one domain."""
        if one == other:
            return 0
        shared = next(
            level
            for level in range(self.last_level - 1, -1, -1)
            if self.domain(level, one) == self.domain(level, other)
        )
        return 2 * (self.last_level - shared)

    def count_domains(self, level: int, rows: Iterable[int]) -> int:
        """Return the number of domains of a level in which some nodes are."""
        found = np.searchsorted(self.first[level], self.position[np.fromiter(rows, np.intp)], side="right")
        return len(np.unique(found))


def domains_of(cluster: Columns) -> Domains:
    """Return the domains of a cluster's nodes. Cached until nodes or paths change."""
    cached = cluster.domains_cache
    if cached is None or cached[0] != cluster.paths_version:
        cached = cluster.domains_cache = (cluster.paths_version, Domains(cluster))
    found = cached[1]
    assert isinstance(found, Domains)
    return found


def _full(path: Sequence[str], count: int) -> tuple[str, ...]:
    """Return a path of exactly ``count`` names. Names after a missing name are dropped; missing names are ""."""
    known: list[str] = []
    for name in path[:count]:
        if not name:
            break
        known.append(name)
    return (*known, *("" for _ in range(count - len(known))))
