"""Plan of an action: placements, evictions and moves, already applied in the transaction, for the cycle to carry out."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.decisions import Request, Running
from calabash.sched.queues.gang import Unit

Placed = tuple[Request, NodePlacement]
PackingKey = tuple[Hashable, ...]
Choose = Callable[[Shape], NodePlacement | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Placements of the requests that start, and the evictions and moves that they need.

    Args:
        placed: requests that start, with their placements.
        evicted: units that are evicted. moved: running requests that are moved, with their new placements.
        in_quota: the requests that start are within the guaranteed amount of their queue.
    """

    placed: tuple[Placed, ...]
    evicted: tuple[Unit, ...] = ()
    moved: tuple[tuple[Running, NodePlacement], ...] = ()
    in_quota: bool = False


def has_topology(requests: Sequence[Request]) -> bool:
    """Return True if one of the requests must or should be near other members of its gang."""
    return any(r.topology is not None for r in requests)


def shapes_of(requests: Sequence[Request]) -> PackingKey:
    """Return the shapes of the requests in their order. The result is used as a key of caches of placements.

    Requests with a topology have the key of their gang and their ranks in addition, because their placement depends on
    the other members.
    """
    shapes: PackingKey = (requests[0].shape,) if len(requests) == 1 else tuple(r.shape for r in requests)
    if has_topology(requests):
        shapes = (*shapes, requests[0].gang_key, *((r.topology, r.rank) for r in requests))
    return shapes


def largest_first(requests: Iterable[Request]) -> list[Request]:
    """Return the requests in the order in which they are placed.

    Requests with the most device compute come first; then the most device memory, the most CPU, and the ID decide.
    """
    return sorted(requests, key=lambda r: (-r.shape.gpu_total_milli, -r.shape.gpu_memory_mib, -r.shape.cpu_milli, r.id))
