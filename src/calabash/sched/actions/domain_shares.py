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

    def parts(self, level: int, candidates: Ints, count: int, below: int) -> Ints:
        """Return for some domains of a level the smallest number of domains of a level below that hold ``count`` members.

        Args:
            candidates: domains that hold ``count`` members.
            below: the level below.
        """
        first = np.searchsorted(self.domains.first[below], self.domains.first[level][candidates])
        last = np.searchsorted(self.domains.first[below], self.domains.last[level][candidates])
        owner = np.repeat(np.arange(len(candidates)), last - first)
        starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(last - first)))
        index = np.arange(len(owner)) - starts[owner] + first[owner]
        sizes = self.usable(below, index)
        sizes = sizes[np.lexsort((-sizes, owner))]
        total = np.cumsum(sizes)
        before = np.concatenate((np.zeros(1, np.int64), total))[starts[:-1]]
        found: Ints = 1 + np.bincount(owner[total - before[owner] < count], minlength=len(candidates))
        return found

    def best(self, level: int, candidates: Ints, count: int) -> int:
        """Return the one of some domains of a level that is best for ``count`` members, which each of them holds.

        It needs the fewest domains of the next level, then of the innermost named level; then it is the fullest, then
        the first.
        """
        if len(candidates) == 1:
            return int(candidates[0])
        named = self.domains.last_level - 1
        keys = [candidates, self.members(level)[candidates]]
        if level < named and (not self.slice_level or named <= self.slice_level):
            keys.append(self.parts(level, candidates, count, named))
        if level < self.domains.last_level:
            keys.append(self.parts(level, candidates, count, level + 1))
        return int(candidates[np.lexsort(keys)[0]])


def shares(capacity: Capacity, level: int, domain: int, count: int) -> Iterator[tuple[int, int]]:
    """Divide ``count`` members among the nodes of a domain that holds them.

    On each level, the domains inside the chosen ones of the level above are filled, the largest first, until one of them
    holds the rest. Below the slice level, each domain is divided on its own, so that it has whole slices.

    Yields the index of each node in path order with its number of members.
    """
    domains = capacity.domains
    chosen, amounts = np.array([domain]), np.array([count])
    while level < domains.last_level:
        if level == capacity.slice_level and len(chosen) > 1:
            for one, amount in zip(chosen.tolist(), amounts.tolist(), strict=True):
                yield from shares(capacity, level, one, amount)
            return
        children = domains.children[level]
        inside = np.concatenate([np.arange(children[one], children[one + 1]) for one in chosen.tolist()])
        level += 1
        sizes = capacity.usable(level, inside)
        order = np.argsort(-sizes, kind="stable")
        total = np.cumsum(sizes[order])
        filled = int(np.searchsorted(total, count))  # so many are filled, and one more takes the rest
        rest = count - (int(total[filled - 1]) if filled else 0)
        left = order[filled:]
        sufficient = np.sort(inside[left[sizes[left] >= rest]])
        chosen = np.append(inside[order[:filled]], capacity.best(level, sufficient, rest))
        amounts = np.append(sizes[order[:filled]], rest)
    yield from zip(chosen.tolist(), amounts.tolist(), strict=True)
