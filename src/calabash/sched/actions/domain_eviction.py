"""Evictions for a gang that must be in one domain of the network: the cheapest domain to clear, or none.

Theory of operation. For each domain of the required level, two numbers are computed: how many members fit there now, and how
many would fit if all units that the gang may evict were evicted. Domains where the second number is too small are left out. The
others are tried in the order of the device compute that is missing. In each, victims are searched for with the choice of nodes
restricted to the domain; then the members are placed again by their topology, and units whose placements are still free are
restored. Of the domains that were tried, the one with the least evicted device compute is taken. For a gang without a required
level, the whole cluster is one domain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from calabash.sched.actions.packing import place_together
from calabash.sched.actions.plan import Plan
from calabash.sched.actions.unit_pool import UnitPool
from calabash.sched.cluster.columns import Ints, Rows
from calabash.sched.cluster.domains import Domains
from calabash.sched.cluster.restricted_placer import RestrictedPlacer
from calabash.sched.cluster.shape import Shape
from calabash.sched.cluster.transaction import Transaction
from calabash.sched.decisions import Request
from calabash.sched.queues.gang import Unit
from calabash.sched.topology import GroupKey

DOMAINS_TRIED_MAX = 16
Search = Callable[[UnitPool], Plan | None]
Narrow = Callable[[Rows], UnitPool]


def cheapest_domain(
    transaction: Transaction, requests: Sequence[Request], pool: UnitPool, narrow: Narrow, search: Search
) -> Plan | None:
    """Return the plan that evicts least so that the requests start in domains as they require; None if none is found.

    The plan is applied in the transaction.

    Args:
        pool: units that may be evicted.
        narrow: returns a pool of those of these units that are on some nodes.
        search: searches for victims in a pool, with the placer of the transaction.
    """
    mark = transaction.mark()
    domains = transaction.placer.domains()
    best: tuple[float, Plan] | None = None
    whole = all(request.shape.whole or not request.shape.gpu_count for request in requests)
    for least_milli, rows in _candidates(transaction, domains, requests, pool)[:DOMAINS_TRIED_MAX]:
        if best is not None and whole and least_milli >= best[0]:
            break
        with _restricted(transaction, rows):
            plan = search(narrow(rows))
            placed = _placed_again(transaction, requests, plan) if plan is not None else None
        if placed is not None:
            cost = sum(unit.amount.gpu_milli for unit in placed.evicted)
            if best is None or cost < best[0]:
                best = (cost, placed)
        transaction.rollback(mark)
    if best is None:
        return None
    for unit in best[1].evicted:
        for member in unit.members:
            transaction.release(member.request.shape, member.placement)
    for request, placement in best[1].placed:
        transaction.place(request.shape, placement)
    return best[1]


@contextmanager
def _restricted(transaction: Transaction, rows: Rows) -> Iterator[None]:
    count = len(transaction.placer.domains().rows)
    if len(rows) == count:
        yield
        return
    with transaction.choosing_with(RestrictedPlacer(transaction.placer, rows, count)):
        yield


def _candidates(
    transaction: Transaction, domains: Domains, requests: Sequence[Request], pool: UnitPool
) -> list[tuple[float, Rows]]:
    """Return the rows of the domains that can be cleared, each with the device milli that are missing there."""
    required = {request.topology.required for request in requests if request.topology is not None} - {""}
    if len(required) > 1:
        return []
    level = domains.level(required.pop()) if required else 0
    if level is None or not len(domains.rows):
        return []
    inside = _domains_of_running_members(transaction, domains, requests, level)
    free = _members(transaction, domains, requests, level)
    mark = transaction.mark()
    for unit in pool.units():
        for member in unit.members:
            transaction.release(member.request.shape, member.placement)
    cleared = _members(transaction, domains, requests, level)
    transaction.rollback(mark)
    wanted = np.array([[count] for count in _numbers(requests).values()])
    each = np.array([[shape.gpu_total_milli] for shape in _numbers(requests)])
    missing = ((wanted - np.minimum(free, wanted)) * each).sum(axis=0)
    possible = np.flatnonzero((cleared >= wanted).all(axis=0))
    if inside:
        possible = possible[np.isin(possible, inside)]
    order = possible[np.argsort(missing[possible], kind="stable")]
    return [(float(missing[domain]), domains.rows_in(level, domain)) for domain in order.tolist()]


def _domains_of_running_members(
    transaction: Transaction, domains: Domains, requests: Sequence[Request], level: int
) -> list[int]:
    """Return the domain of a level in which most of the running members of the gang are; nothing if none runs."""
    found: list[int] = []
    for request in requests:
        if request.topology is not None:
            key = GroupKey(gang=request.gang_key, topology=request.topology)
            found = [domains.domain(level, row) for row in transaction.rows_of(key)]
            break
    return [max(sorted(set(found)), key=found.count)] if found else []


def _numbers(requests: Sequence[Request]) -> dict[Shape, int]:
    numbers: dict[Shape, int] = {}
    for request in requests:
        numbers[request.shape] = numbers.get(request.shape, 0) + 1
    return numbers


def _members(transaction: Transaction, domains: Domains, requests: Sequence[Request], level: int) -> Ints:
    """Return how many requests fit in each domain of a level, one row for each of their shapes."""
    shapes = dict.fromkeys(request.shape for request in requests)
    counts = [np.minimum(transaction.placer.count(shape)[0][domains.rows], len(requests)) for shape in shapes]
    return np.array([domains.sums(level, count) for count in counts])


def _placed_again(transaction: Transaction, requests: Sequence[Request], plan: Plan) -> Plan | None:
    """Return a plan whose requests are placed by their topology, after the evictions of a plan; None if they do not fit.

    Units that do not have to be evicted for it are left out.
    """
    for request, placement in plan.placed:
        transaction.release(request.shape, placement)
    placed = place_together(transaction, requests)
    if placed is None:
        return None
    evicted = {id(unit): unit for unit in plan.evicted}
    for unit in sorted(plan.evicted, key=lambda u: u.order, reverse=True):
        core_is_evicted = any(u.core and u.gang == unit.gang for u in evicted.values())
        if (unit.core or not core_is_evicted) and _restore(transaction, unit):
            del evicted[id(unit)]
    return replace(plan, placed=placed, evicted=tuple(evicted.values()))


def _restore(transaction: Transaction, unit: Unit) -> bool:
    """Place an evicted unit again where it was; return False, with nothing changed, if that is not free."""
    mark = transaction.mark()
    for member in unit.members:
        if not transaction.placer.fits_at(member.request.shape, member.placement):
            transaction.rollback(mark)
            return False
        transaction.place(member.request.shape, member.placement)
    return True
