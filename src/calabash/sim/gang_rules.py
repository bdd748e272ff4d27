"""Rules that divide the members of a gang among nodes, for comparison with the scheduler's own rule.

Each rule is written from the published description of another scheduler. A rule gets the number of members that fit on each
node, in the order of the nodes' paths, and returns the nodes that it takes with the number of members there, in the order of
ranks. Queues, priorities and everything else of these schedulers are left out.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from calabash.sched.cluster.columns import Ints
from calabash.sched.cluster.domains import Domains
from calabash.sched.topology import GangTopology

Division = list[tuple[int, int]]
"""Index of each node in path order, and number of members there."""
Rule = Callable[[Domains, Ints, int, GangTopology], Division | None]


def kueue_rule(domains: Domains, free: Ints, count: int, topology: GangTopology) -> Division | None:
    """Topology-aware scheduling of Kueue (KEP-2724, profile BestFit).

    Of the domains of the requested level that hold all members, the one with the least capacity is taken. If none does, a
    required level refuses; a preferred level is given up for the next one outwards, and at last several outermost
    domains are taken. Then, level by level down to the nodes, the domains below all chosen ones are sorted by capacity,
    the largest first; the first of them that holds the rest is replaced by the one with the least sufficient capacity.
    """
    level = domains.level(topology.required or topology.preferred)
    if level is None or int(free.sum()) < count:
        return None
    chosen: Ints | None = None
    while chosen is None:
        sizes = domains.sums(level, free)
        sufficient = np.flatnonzero(sizes >= count)
        if len(sufficient):
            chosen = sufficient[[int(sizes[sufficient].argmin())]]
        elif topology.required:
            return None
        elif level == 1:
            chosen = _fewest(np.arange(len(sizes)), sizes, count)
        else:
            level -= 1
    while level < domains.last_level:
        children = domains.children[level]
        below = np.concatenate([np.arange(children[domain], children[domain + 1]) for domain in chosen.tolist()])
        level += 1
        chosen = _fewest(below, domains.sums(level, free)[below], count)
    sizes = free[chosen]
    taken = np.minimum(sizes, np.maximum(count - (np.cumsum(sizes) - sizes), 0))
    return sorted(zip(chosen.tolist(), taken.tolist(), strict=True))


def _fewest(candidates: Ints, sizes: Ints, count: int) -> Ints:
    """Return the largest of some domains until one holds the rest, and of those that hold the rest the smallest."""
    order = np.argsort(-sizes, kind="stable")
    filled = int(np.searchsorted(np.cumsum(sizes[order]), count))
    rest = count - int(sizes[order[:filled]].sum())
    last = order[filled:]
    last = last[sizes[last] >= rest]
    found: Ints = candidates[np.append(order[:filled], last[sizes[last].argmin()])]
    return found


def kai_rule(domains: Domains, free: Ints, count: int, topology: GangTopology) -> Division | None:
    """Topology plug-in of KAI: subsets of nodes and scores of nodes.

    From the preferred level outwards to the required one, the first domain is taken in which all members fit. Its domains of
    the preferred level are scored by capacity, the fullest highest, and the members are placed one by one on the node
    with the highest score; of equal scores, on the one with the fewest free devices (bin packing).
    """
    required = domains.level(topology.required) if topology.required else 0
    preferred = domains.level(topology.preferred) or required or 0
    assert required is not None
    for level in range(max(preferred, required), required - 1, -1):
        sizes = domains.sums(level, free)
        sufficient = np.flatnonzero(sizes >= count)
        if len(sufficient):
            domain = int(sufficient[sizes[sufficient].argmin()])
            inside = np.arange(domains.first[level][domain], domains.last[level][domain])
            inside = inside[free[inside] > 0]
            scored = max(level, preferred)
            group = np.searchsorted(domains.first[scored], inside, side="right") - 1
            order = inside[np.lexsort((free[inside], group, domains.sums(scored, free)[group]))]
            taken = np.minimum(free[order], np.maximum(count - (np.cumsum(free[order]) - free[order]), 0))
            return [(index, number) for index, number in zip(order.tolist(), taken.tolist(), strict=True) if number]
    return None


RULES: dict[str, Rule] = {"kueue": kueue_rule, "kai": kai_rule}
