"""Fair shares of a queue tree: the guaranteed amount and the share of the surplus of each queue.

Theory of operation. Every resource (device milli, CPU milli, host MiB) is divided separately, level by level from the
root. At each level the amount of the parent is divided in two steps:

1. *guaranteed*: every child gets its deserved amount, but no more than its demand. The part of a parent's guaranteed
   amount that its children do not demand is offered to their siblings first, by weight: the deserved amount of an
   organisation stays in the organisation.
2. *over quota*: the rest is divided by water-filling (``water_fill``) in proportion to the over-quota weights, up to the
   unmet demand of each child. So no queue gets more than its demand, and no weight is wasted.

With a half-life, past use (``past_use``) corrects the weights: a queue that has used more than its share of the recent past
gets less of the surplus now, and one that has used less gets more. Deserved amounts do not depend on past use. The form
(weight corrected by the difference between entitlement and decayed use) is that of time-based fair share in batch systems;
guaranteed plus weighted surplus is max-min fairness with minimum rates (Bertsekas and Gallager, Data Networks, 6.5).

Shares are floats; they are compared with a tolerance of ``EPSILON`` of a unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calabash.sched.amounts import EPSILON, RESOURCES

HISTORY_STRENGTH = 1.0
WEIGHT_FLOOR_RATIO = 0.05

Shares = list[list[float]]
"""One row per queue, one column per resource of ``Amount``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueShares:
    """Shares of all queues, by queue number and resource.

    Attributes:
        guaranteed: in-quota amounts.
        fair: in-quota amounts plus the shares of the surplus.
    """

    guaranteed: Shares
    fair: Shares


def water_fill(available: float, caps: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Divide ``available`` in proportion to ``weights``, no share above its cap (water-filling).

    Returns one amount per cap; their sum is min(available, sum of caps with a positive weight).
    """
    given = [0.0] * len(caps)
    order = sorted((i for i in range(len(caps)) if weights[i] > 0 and caps[i] > 0), key=lambda i: caps[i] / weights[i])
    weight_left = sum(weights[i] for i in order)
    for i in order:
        if available <= 0:
            break
        given[i] = min(caps[i], available * weights[i] / weight_left) if weight_left > 0 else 0.0
        available -= given[i]
        weight_left -= weights[i]
    return given


def corrected_weights(weights: Sequence[float], past: Sequence[float], active: Sequence[bool]) -> list[float]:
    """Return the weights of sibling queues, corrected by their past use.

    Weights and past use are normalised to sum 1 over the active queues, and their difference is added to the weight. A
    weight never falls below WEIGHT_FLOOR_RATIO of itself, so that past use cannot starve a queue. Returns the weights
    unchanged if no active queue has a weight, or none has past use.

    Args:
        past: decayed use above the deserved amount, per queue, in any common unit.
        active: queues that have unmet demand.
    """
    weight_sum = sum(w for w, on in zip(weights, active, strict=True) if on)
    past_sum = sum(p for p, on in zip(past, active, strict=True) if on)
    if weight_sum <= 0 or past_sum <= EPSILON:
        return list(weights)
    corrected = []
    for weight, used in zip(weights, past, strict=True):
        share = weight / weight_sum
        corrected.append(max(share * WEIGHT_FLOOR_RATIO, share + HISTORY_STRENGTH * (share - used / past_sum)))
    return corrected


def effective_weights(weights: Sequence[float], past: Sequence[float]) -> list[float]:
    """Return the corrected weights of sibling queues that all have demand, scaled to the sum of the weights.

    For people: a queue whose past use is in proportion to its weight has its own weight, one that used nothing has more.
    """
    corrected = corrected_weights(weights, past, [True] * len(weights))
    total = sum(corrected)
    return [value * sum(weights) / total for value in corrected] if total > 0 else list(weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class FairShareInput:
    """Input of ``divide``, by queue number. Queue 0 is the root; parents come before their children.

    Args:
        children: numbers of the children of each queue.
        deserved, demand: amounts per queue and resource; demand is the running plus the waiting amount, at most the
            limit.
        weights: over-quota weight per queue.
        past: past use of each queue, as in ``QueueTree.past``.
    """

    children: Sequence[Sequence[int]]
    deserved: Shares
    demand: Shares
    weights: Sequence[float]
    past: Sequence[float]


def divide(tree: FairShareInput, capacity: Sequence[float]) -> QueueShares:
    """Divide the capacity among all queues of the tree: the guaranteed amounts first, then the surplus by weight."""
    count = len(tree.children)
    guaranteed = [[0.0] * RESOURCES for _ in range(count)]
    fair = [[0.0] * RESOURCES for _ in range(count)]
    fair[0] = [float(c) for c in capacity]
    guaranteed[0] = list(fair[0])
    for parent, kids in enumerate(tree.children):
        if not kids:
            continue
        for resource in range(RESOURCES):
            _divide_level(tree, parent, resource, guaranteed, fair)
    return QueueShares(guaranteed=guaranteed, fair=fair)


def _divide_level(tree: FairShareInput, parent: int, resource: int, guaranteed: Shares, fair: Shares) -> None:
    """Divide the amounts of one queue among its children, for one resource, and store the results.

    Args:
        parent: number of the queue. resource: index of the resource in ``Amount``.
        guaranteed, fair: shares by queue number and resource, in which those of the parent are set already.
    """
    kids = tree.children[parent]
    demand = [tree.demand[k][resource] for k in kids]
    due = [min(tree.deserved[k][resource], d) for k, d in zip(kids, demand, strict=True)]
    available = guaranteed[parent][resource]
    # If the children deserve more than is available, all get the same proportion.
    sure = due if sum(due) <= available + EPSILON else water_fill(available, due, due)
    weights = [tree.weights[k] for k in kids]
    unmet = [d - s for d, s in zip(demand, sure, strict=True)]
    if parent != 0:
        extra = water_fill(available - sum(sure), unmet, weights)
        sure = [s + e for s, e in zip(sure, extra, strict=True)]
        unmet = [d - s for d, s in zip(demand, sure, strict=True)]
    corrected = corrected_weights(weights, [tree.past[k] for k in kids], [u > EPSILON for u in unmet])
    surplus = water_fill(max(0.0, fair[parent][resource] - sum(sure)), unmet, corrected)
    for kid, base, extra_amount in zip(kids, sure, surplus, strict=True):
        guaranteed[kid][resource] = base
        fair[kid][resource] = base + extra_amount
