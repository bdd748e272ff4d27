"""Explanation of why a gang fits in no domain of the level that it requires: how many members each domain holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calabash.model.messages import Message, Text, joined
from calabash.sched.cluster.columns import Ints
from calabash.sched.cluster.domains import Domains
from calabash.sched.decisions import Request
from calabash.sched.state import SchedulerState
from calabash.sched.topology import GangTopology, GroupKey

NAMED_MAX = 3


def short_of_domain(state: SchedulerState, requests: Sequence[Request]) -> Text:
    """Return a text with the domains that hold most of the requests, if none holds all that must be in one; else "".

    Numbers of members with MIG profiles, or with several slices, are upper bounds.

    Args:
        requests: requests that start together.
    """
    domains = state.placer.domains()
    groups: dict[GangTopology, list[Request]] = {}
    for request in requests:
        if request.topology is not None and request.topology.binding:
            groups.setdefault(request.topology, []).append(request)
    return next((text for topology, group in groups.items() if (text := _short(state, domains, topology, group))), "")


def _short(state: SchedulerState, domains: Domains, topology: GangTopology, members: Sequence[Request]) -> Text:
    for name in filter(None, (topology.required, topology.slice_level)):
        if domains.level(name) is None:
            return Message("the cluster has no topology level {level}", level=name)
    free, counts = _counts(state, domains, members)
    near = state.transaction.rows_of(GroupKey(gang=members[0].gang_key, topology=topology))
    if topology.required:
        held = _held(domains, topology.required, free, counts)
        if near:
            return _beside(domains, topology.required, held, near, len(members))
        if not len(held) or held.max() < len(members):
            return _largest(domains, topology.required, held, f"{len(members)} members")
    if not topology.slice_level or near:
        return ""
    size = topology.slice_size
    held = _held(domains, topology.slice_level, free, counts)
    slices = -(-len(members) // size)
    if (held // size).sum() < slices:
        whole = Message("{fitting} of {slices} slices", fitting=int((held // size).sum()), slices=slices)
        return Message(
            "{whole} of {size} members fit in one {level} each: {largest}",
            whole=whole,
            size=size,
            level=topology.slice_level,
            largest=_largest(domains, topology.slice_level, held, f"{size} members"),
        )
    return ""


def _counts(state: SchedulerState, domains: Domains, members: Sequence[Request]) -> tuple[list[Ints], list[int]]:
    """Return for each shape of the members how many of it fit on each node, in path order, and how many there are."""
    shapes = list(dict.fromkeys(member.shape for member in members))
    counts = [sum(member.shape == shape for member in members) for shape in shapes]
    free = [np.minimum(state.placer.count(s)[0][domains.rows], n) for s, n in zip(shapes, counts, strict=True)]
    return free, counts


def _held(domains: Domains, level: str, free: Sequence[Ints], counts: Sequence[int]) -> Ints:
    """Return for each domain of a level the number of members that fit there, at most as many as there are."""
    number = domains.level(level)
    assert number is not None
    held: Ints = np.zeros(len(domains.first[number]), np.int64)
    for on_node, count in zip(free, counts, strict=True):
        held += np.minimum(domains.sums(number, on_node), count)
    return held


def _largest(domains: Domains, level: str, held: Ints, all_members: str) -> Text:
    """Return a text such as "no rack holds 8 members; rack r7 holds 7, r3 holds 5"."""
    number = domains.level(level)
    assert number is not None
    order = np.argsort(-held, kind="stable")[:NAMED_MAX].tolist()
    named = [Message("{name} holds {count}", name=domains.name(number, d), count=int(held[d])) for d in order]
    return Message("no {level} holds {members}; {named}", level=level, members=all_members, named=joined(", ", named))


def _beside(domains: Domains, level: str, held: Ints, near: Sequence[int], members: int) -> Text:
    """Return a text about the domain where other members of the gang run, if it has no room for the waiting ones."""
    number = domains.level(level)
    assert number is not None
    homes = [domains.domain(number, row) for row in near]
    home = max(dict.fromkeys(homes), key=homes.count)
    if held[home] >= members:
        return ""
    return Message(
        "the gang runs in {level} {name}, which holds {count} of {members} more members",
        level=level,
        name=domains.name(number, home),
        count=int(held[home]),
        members=members,
    )
