"""Placement of requests that start together, all of them or none, near each other where they ask for it."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.sched.actions.domain_packing import DomainPacking
from calabash.sched.actions.free_packing import MorePlacements, Packing, is_simple, pack_freely
from calabash.sched.actions.plan import Choose, Placed, has_topology
from calabash.sched.cluster.transaction import Transaction
from calabash.sched.decisions import Request


def place_together(transaction: Transaction, requests: Sequence[Request]) -> tuple[Placed, ...] | None:
    """Place all requests in the transaction and return their placements; return None, with nothing changed, if not all fit."""
    return pack(transaction, requests).placed


def pack(
    transaction: Transaction,
    requests: Sequence[Request],
    choose: Choose | None = None,
    more: MorePlacements | None = None,
) -> Packing:
    """Place all requests in the transaction, or none.

    Args:
        choose, more: see ``free_packing.pack_freely``. Both are ignored for requests with a topology.
    """
    if has_topology(requests):
        return DomainPacking(transaction).run(requests)
    return pack_freely(transaction, requests, choose, more)


def is_exact(requests: Sequence[Request]) -> bool:
    """Return True if the requests start together whenever each of them finds a node in turn (``free_packing.is_simple``)."""
    return is_simple(requests) and not has_topology(requests)
