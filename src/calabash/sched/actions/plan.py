"""Plan of an action: placements, evictions and moves, already applied in the transaction, for the cycle to carry out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.decisions import Request, Running
from calabash.sched.queues.gang import Unit

Placed = tuple[Request, NodePlacement]
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


def shapes_of(requests: Sequence[Request]) -> tuple[Shape, ...]:
    """Return the shapes of the requests in their order. The result is used as a key of caches of placements."""
    return (requests[0].shape,) if len(requests) == 1 else tuple(r.shape for r in requests)


def largest_first(requests: Iterable[Request]) -> list[Request]:
    """Return the requests in the order in which they are placed.

    Requests with the most device compute come first; then the most device memory, the most CPU, and the ID decide.
    """
    return sorted(requests, key=lambda r: (-r.shape.gpu_total_milli, -r.shape.gpu_memory_mib, -r.shape.cpu_milli, r.id))
