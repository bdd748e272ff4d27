"""Placement of requests that start together near each other in the network: all of them, or none.

Theory of operation. For each node, the members that fit there are counted with the fit that places them later
(``Placer.count``), and the counts are summed over the domains of each level. The search begins at the preferred level, or at
the nodes if none is preferred, and goes outwards level by level to the required level, or to the whole cluster. On each level
it takes the domain that holds all members and needs the fewest domains of the level below for them, then the fewest of the
innermost named level; of equal ones, the fullest: that in which the fewest members fit. Within the domain, the members are
divided level by level (``domain_shares.shares``): the largest domains are filled first, as long as none of them holds the rest.
So the number of domains of the level below is the smallest possible, and large domains stay free for large gangs.

Slices are counted as units: the members that fit in a domain of the slice level, divided by the size of a slice.

Members of a running gang, such as the replacement of a failed member, are placed in the domains where the others run: in the
innermost one that has room, never outside of the required one. At last, the placements are assigned to the members in the order
of their ranks and of the paths of the nodes.

Counts that are upper bounds (MIG, several slices of devices) are replaced, for the nodes of a domain that is about to be used,
by the numbers of members that were placed there on trial. Members of different shapes are packed into one domain after another
by ``free_packing``, the fullest domains first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from calabash.sched.actions.domain_shares import Capacity, shares
from calabash.sched.actions.free_packing import Packing, pack_freely
from calabash.sched.actions.plan import Placed
from calabash.sched.cluster.columns import Bools, Ints
from calabash.sched.cluster.domains import Domains
from calabash.sched.cluster.restricted_placer import RestrictedPlacer
from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.cluster.transaction import Transaction
from calabash.sched.decisions import Request
from calabash.sched.topology import GangTopology, GroupKey, natural_key

DOMAINS_TRIED_MAX = 32
Domain = tuple[int, int]
"""Number of a level, and number of a domain of this level."""
EVERYWHERE: Domain = (0, 0)


class DomainPacking:
    """One attempt to place requests with topologies; nothing is changed in the transaction if it fails."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._domains: Domains = transaction.placer.domains()
        self._cut = False

    def run(self, requests: Sequence[Request]) -> Packing:
        """Place all requests in the transaction, or none. Requests without a topology are placed last, anywhere."""
        groups: dict[GangTopology | None, list[Request]] = {}
        for request in requests:
            groups.setdefault(request.topology, []).append(request)
        free = groups.pop(None, [])
        mark = self._transaction.mark()
        placed: list[Placed] = []
        for topology, members in sorted(groups.items(), key=lambda item: -len(item[1])):
            assert topology is not None
            found = self._place_group(topology, sorted(members, key=_rank_key))
            if found is None:
                self._transaction.rollback(mark)
                return Packing(placed=None, cut=self._cut or len(groups) > 1)
            placed += found
        if free:
            packing = pack_freely(self._transaction, free)
            if packing.placed is None:
                self._transaction.rollback(mark)
                return Packing(placed=None, cut=True)
            placed += packing.placed
        return Packing(placed=tuple(placed))

    # ---- groups and slices ----------------------------------------------------------------------------------------

    def _place_group(self, topology: GangTopology, members: list[Request]) -> list[Placed] | None:
        """Place the members of one group, which are sorted by rank."""
        domains = self._domains
        required = domains.level(topology.required) if topology.required else 0
        slice_level = domains.level(topology.slice_level) if topology.slice_level else 0
        if required is None or slice_level is None or not len(domains.rows):
            return None  # the cluster does not have the level
        preferred = domains.level(topology.preferred)
        start = max(required, domains.last_level if preferred is None else preferred)
        near = self._rows_of(GroupKey(gang=members[0].gang_key, topology=topology))
        within = self._fullest_of(required, near) if near else EVERYWHERE
        if not topology.slice_level or slice_level <= required:
            return self._place_near(members, within, (required, start), near)
        size = topology.slice_size
        slices = _slices(members, size)
        single = len({m.shape for m in members}) == 1
        if single and not near and all(len(part) == size for part in slices.values()):
            return self._place_near(members, within, (required, start), near, (slice_level, size))
        for level in range(start, required - 1, -1):
            for domain in self._candidates(members, within, level, near)[:DOMAINS_TRIED_MAX]:
                placed = self._place_slices(topology, slices, (level, domain), slice_level)
                if placed is not None:
                    return placed
        self._cut = True
        return None

    def _place_slices(
        self, topology: GangTopology, slices: dict[int | None, list[Request]], within: Domain, slice_level: int
    ) -> list[Placed] | None:
        """Place each slice in one domain of the slice level inside a domain; those that run partly first, then the largest."""
        mark = self._transaction.mark()
        placed: list[Placed] = []
        gang = next(iter(slices.values()))[0].gang_key
        rows = {
            number: self._rows_of(GroupKey(gang=gang, topology=topology, slice=number)) if number is not None else ()
            for number in slices
        }
        for number, members in sorted(slices.items(), key=lambda item: (not rows[item[0]], -len(item[1]))):
            near = rows[number]
            inside = self._fullest_of(slice_level, near) if near else within
            found = self._place_near(members, inside, (slice_level, self._domains.last_level), near)
            if found is None:
                self._transaction.rollback(mark)
                return None
            placed += found
        return placed

    def _rows_of(self, key: GroupKey) -> Sequence[int]:
        return self._transaction.rows_of(key)

    def _fullest_of(self, level: int, rows: Sequence[int]) -> Domain:
        """Return the domain of a level to which most of the rows belong; the first of equal ones."""
        counts: dict[int, int] = {}
        for row in rows:
            domain = self._domains.domain(level, row)
            counts[domain] = counts.get(domain, 0) + 1
        return (level, min(counts, key=lambda domain: (-counts[domain], domain)))

    # ---- one group or slice ---------------------------------------------------------------------------------------

    def _place_near(
        self,
        members: list[Request],
        within: Domain,
        levels: tuple[int, int],
        near: Sequence[int],
        slices: tuple[int, int] = (0, 1),
    ) -> list[Placed] | None:
        """Place members in one domain inside of ``within``, of a level in ``levels``, the innermost first.

        Args:
            levels: the outermost level, and the innermost.
            near: rows of the nodes where other members run; only domains that have one of them are taken.
            slices: level and size of slices, each of which must be in one domain of the level; (0, 1) without slices.
        """
        required, start = max(levels[0], within[0]), max(levels[1], within[0])
        if len({member.shape for member in members}) > 1:
            return self._place_mixed(members, within, (required, start), near)
        shape, count = members[0].shape, len(members)
        counts, exact = self._transaction.placer.count(shape)
        free = np.minimum(counts[self._domains.rows], count)
        known = np.full(len(free), exact, np.bool_)
        for level in range(start, required - 1, -1):
            while True:
                capacity = Capacity(self._domains, free, *slices)
                domain = self._best(capacity, level, count, within, near)
                if domain is None:
                    break
                if not self._count_on_trial(shape, free, known, (level, domain)):
                    continue  # some counts were too large
                placed = self._place_in(members, capacity, (level, domain), free, known)
                if placed is not None:
                    return placed
        return None

    def _best(self, capacity: Capacity, level: int, count: int, within: Domain, near: Sequence[int]) -> int | None:
        """Return the domain of a level that is best for ``count`` members; None if none holds them."""
        inside = self._domains.inside(level, *within)
        possible = capacity.members(level)[inside] >= count
        if near:
            possible &= self._near(level, near)[inside]
        if not possible.any():
            return None
        candidates = np.flatnonzero(possible) + inside.start
        return capacity.best(level, candidates, count)

    def _near(self, level: int, rows: Sequence[int]) -> Bools:
        """Return a mask of the domains of a level to which some of the rows belong."""
        mask = np.zeros(len(self._domains.first[level]), np.bool_)
        mask[[self._domains.domain(level, row) for row in rows]] = True
        return mask

    def _count_on_trial(self, shape: Shape, free: Ints, known: Bools, domain: Domain) -> bool:
        """Replace upper bounds in ``free`` for the nodes of a domain by real counts. Returns False if one was too large."""
        segment = slice(self._domains.first[domain[0]][domain[1]], self._domains.last[domain[0]][domain[1]])
        correct = True
        for index in np.flatnonzero(~known[segment] & (free[segment] > 0)) + segment.start:
            row, most = int(self._domains.rows[index]), int(free[index])
            mark = self._transaction.mark()
            found = len(self._fill(shape, row, most))
            self._transaction.rollback(mark)
            correct &= found == most
            free[index] = found
        known[segment] = True
        return correct

    def _fill(self, shape: Shape, row: int, count: int) -> list[NodePlacement]:
        """Place at most ``count`` requests of a shape on a node, and return their placements."""
        placements: list[NodePlacement] = []
        for _ in range(count):
            placement = self._transaction.placer.choose_on(shape, row)
            if placement is None:
                break
            self._transaction.place(shape, placement)
            placements.append(placement)
        return placements

    def _place_in(
        self, members: list[Request], capacity: Capacity, domain: Domain, free: Ints, known: Bools
    ) -> list[Placed] | None:
        """Place all members in a domain that holds them. Returns None, with ``free`` corrected, if a count was too large."""
        mark = self._transaction.mark()
        found: list[NodePlacement] = []
        for index, count in sorted(shares(capacity, domain[0], domain[1], len(members))):
            on_node = self._fill(members[0].shape, int(self._domains.rows[index]), count)
            if len(on_node) < count:
                self._transaction.rollback(mark)
                free[index], known[index] = len(on_node), True
                return None
            found += on_node
        return list(zip(members, found, strict=True))

    # ---- members of different shapes ------------------------------------------------------------------------------

    def _place_mixed(
        self, members: list[Request], within: Domain, levels: tuple[int, int], near: Sequence[int]
    ) -> list[Placed] | None:
        for level in range(levels[1], levels[0] - 1, -1):
            candidates = self._candidates(members, within, level, near)
            self._cut |= len(candidates) > DOMAINS_TRIED_MAX
            for domain in candidates[:DOMAINS_TRIED_MAX]:
                for inside in self._growing(members, (level, domain)):
                    placed = self._pack_inside(members, inside)
                    if placed is not None:
                        return placed
        return None

    def _candidates(self, members: Sequence[Request], within: Domain, level: int, near: Sequence[int]) -> list[int]:
        """Return the domains of a level in which the members may fit, the fullest first."""
        if level < within[0]:
            return []
        inside = self._domains.inside(level, *within)
        total = np.zeros(inside.stop - inside.start, np.int64)
        possible = np.ones(len(total), np.bool_)
        for shape, (count, free) in self._counts(members).items():
            del shape
            sums = self._domains.sums(level, free)[inside]
            possible &= sums >= count
            total += sums
        if near:
            possible &= self._near(level, near)[inside]
        found = np.flatnonzero(possible)
        return (found[np.argsort(total[found], kind="stable")] + inside.start).tolist()  # type: ignore[no-any-return]

    def _counts(self, members: Sequence[Request]) -> dict[Shape, tuple[int, Ints]]:
        """Return for each shape of the members how many have it, and how many of these fit on each node in path order."""
        numbers: dict[Shape, int] = {}
        for member in members:
            numbers[member.shape] = numbers.get(member.shape, 0) + 1
        return {
            shape: (count, np.minimum(self._transaction.placer.count(shape)[0][self._domains.rows], count))
            for shape, count in numbers.items()
        }

    def _growing(self, members: Sequence[Request], domain: Domain) -> Iterator[Ints]:
        """Yield the rows of more and more of the domains of the next level inside a domain, the largest of them first."""
        level, number = domain
        if level == self._domains.last_level:
            yield self._domains.rows_in(level, number)
            return
        inside = self._domains.inside(level + 1, level, number)
        needed = self._counts(members)
        sums = [self._domains.sums(level + 1, free)[inside] for _, free in needed.values()]
        order = np.argsort(-np.sum(sums, axis=0), kind="stable")
        held = [np.cumsum(sizes[order]) >= count for sizes, (count, _) in zip(sums, needed.values(), strict=True)]
        enough = np.logical_and.reduce(held)
        taken = int(enough.argmax()) + 1
        while taken < len(order):
            chosen = np.sort(order[:taken]) + inside.start
            yield np.concatenate([self._domains.rows_in(level + 1, int(child)) for child in chosen])
            taken *= 2
        yield self._domains.rows_in(level, number)

    def _pack_inside(self, members: Sequence[Request], rows: Ints) -> list[Placed] | None:
        """Place members of different shapes on some nodes, and assign the placements to them by rank."""
        placer = self._transaction.placer
        with self._transaction.choosing_with(RestrictedPlacer(placer, rows, len(self._domains.rows))):
            packing = pack_freely(self._transaction, members)
        self._cut |= packing.cut
        if packing.placed is None:
            return None
        placed: list[Placed] = []
        by_path = sorted(packing.placed, key=lambda pair: int(self._domains.position[pair[1].node]))
        for _, same in itertools.groupby(sorted(members, key=_shape_key), key=_shape_key):
            of_shape = sorted(same, key=_rank_key)
            placements = [placement for request, placement in by_path if request.shape == of_shape[0].shape]
            placed += zip(of_shape, placements, strict=True)
        return placed


def _shape_key(request: Request) -> int:
    return hash(request.shape)


def _rank_key(request: Request) -> tuple[object, ...]:
    return (request.rank is None, request.rank or 0, natural_key(request.id))


def _slices(members: Sequence[Request], size: int) -> dict[int | None, list[Request]]:
    """Return the slices of members that are sorted by rank, by number.

    Members without ranks form slices in their order; the number of such a slice is not known to other members, so it is
    negative.
    """
    slices: dict[int | None, list[Request]] = {}
    unranked = 0
    for member in members:
        if member.rank is not None:
            slices.setdefault(member.rank // size, []).append(member)
        else:
            slices.setdefault(-1 - unranked // size, []).append(member)
            unranked += 1
    return slices
