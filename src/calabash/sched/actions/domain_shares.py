"""Capacity of domains for members of one shape, and the division of members among domains and nodes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from calabash.sched.cluster.columns import Ints
from calabash.sched.cluster.domains import Domains


class Capacity:
    """Numbers of members that fit in the domains of each level.

    Args:
        free: number of members that fit on each node, in path order.
        slice_level, slice_size: members are placed in slices of this size, each in one domain of this level; 0 and 1
            without slices.
    """

    def __init__(self, domains: Domains, free: Ints, slice_level: int, slice_size: int) -> None:
        self.domains = domains
        self.slice_level = slice_level
        self.slice_size = slice_size
        self._free = free.copy()
        self._members: dict[int, Ints] = {}

    def members(self, level: int) -> Ints:
        """Return for each domain of a level the number of members that fit there.

        Above the slice level, whole slices are counted.
        """
        found = self._members.get(level)
        if found is None:
            found = self._members[level] = self._count(level)
        return found

    def _count(self, level: int) -> Ints:
        if not self.slice_level or level >= self.slice_level:
            return self.domains.sums(level, self._free)
        sums = self.domains.sums(self.slice_level, self._free)
        whole = np.concatenate((np.zeros(1, np.int64), np.cumsum(sums - sums % self.slice_size)))
        first = np.searchsorted(self.domains.first[self.slice_level], self.domains.first[level])
        last = np.searchsorted(self.domains.first[self.slice_level], self.domains.last[level])
        counts: Ints = whole[last] - whole[first]
        return counts

    def usable(self, level: int, domains: Ints | slice) -> Ints:
        """Return the number of members that some domains of a level can take as parts of a domain of the level above."""
        sizes = self.members(level)[domains]
        return sizes - sizes % self.slice_size if level == self.slice_level else sizes

    def parts(self, level: int, candidates: Ints, count: int) -> Ints:
        """Return for some domains of a level the smallest number of domains of the next level that hold ``count`` members.

        The number is 0 for the level of nodes.
        """
        if level == self.domains.last_level:
            return np.zeros(len(candidates), np.int64)
        children = self.domains.children[level]
        first, last = children[candidates], children[candidates + 1]
        owner = np.repeat(np.arange(len(candidates)), last - first)
        starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(last - first)))
        index = np.arange(len(owner)) - starts[owner] + first[owner]
        sizes = self.usable(level + 1, index)
        sizes = sizes[np.lexsort((-sizes, owner))]
        total = np.cumsum(sizes)
        before = np.concatenate((np.zeros(1, np.int64), total))[starts[:-1]]
        found: Ints = 1 + np.bincount(owner[total - before[owner] < count], minlength=len(candidates))
        return found

    def best(self, level: int, candidates: Ints, count: int) -> int:
        """Return the one of some domains of a level that is best for ``count`` members, which each of them holds.

        It needs the fewest domains of the next level, then it is the fullest, then the first.
        """
        if len(candidates) == 1:
            return int(candidates[0])
        parts = self.parts(level, candidates, count)
        return int(candidates[np.lexsort((candidates, self.members(level)[candidates], parts))[0]])


def shares(capacity: Capacity, level: int, domain: int, count: int) -> Iterator[tuple[int, int]]:
    """Divide ``count`` members among the nodes of a domain that holds them.

    Yields the index of each node in path order with its number of members.
    """
    domains = capacity.domains
    if level == domains.last_level:
        yield domain, count
        return
    children = np.arange(domains.children[level][domain], domains.children[level][domain + 1])
    sizes = capacity.usable(level + 1, children)
    order = np.argsort(-sizes, kind="stable")
    filled = int(np.searchsorted(np.cumsum(sizes[order]), count))  # so many are filled, and one more takes the rest
    rest = count
    for index in order[:filled].tolist():
        size = int(sizes[index])
        rest -= size
        yield from shares(capacity, level + 1, int(children[index]), size)
    left = order[filled:]
    sufficient = np.sort(children[left[sizes[left] >= rest]])
    yield from shares(capacity, level + 1, capacity.best(level + 1, sufficient, rest), rest)
