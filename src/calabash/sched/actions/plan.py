"""A plan: what an action would do. The board holds it already; the cycle carries it into the registry, or rolls it back."""

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
    """Who starts where, who is evicted for it, and who moves where. ``in_quota``: what starts is within what its queue is
    guaranteed."""

    placed: tuple[Placed, ...]
    evicted: tuple[Unit, ...] = ()
    moved: tuple[tuple[Running, NodePlacement], ...] = ()
    in_quota: bool = False


def shapes_of(requests: Sequence[Request]) -> tuple[Shape, ...]:
    """What decides whether a portion fits: portions of equal shapes fare alike."""
    return (requests[0].shape,) if len(requests) == 1 else tuple(r.shape for r in requests)


def largest_first(requests: Iterable[Request]) -> list[Request]:
    """The order in which members are placed: what is hardest to place goes first."""
    return sorted(requests, key=lambda r: (-r.shape.gpu_total_milli, -r.shape.gpu_memory_mib, -r.shape.cpu_milli, r.id))
