"""Fair shares of a tree of queues: what each is guaranteed, and what each should have of the rest.

Theory of operation. Every resource (device milli, CPU milli, host MiB) is divided on its own, level by level from the
root. At each level the amount of the parent is poured twice:

1. *guaranteed*: every child gets what it deserves, at most what it demands. Children of one parent that leave part of
   it untouched leave it to their siblings first (by weight): what an organisation deserves stays in the organisation.
2. *over quota*: what is left is poured like water into glasses whose widths are the over-quota weights and whose
   heights are the unmet demands (``pour``), so nobody gets more than it asks and no weight is wasted.

Past use narrows a glass: with a half-life, a queue that has had more than its share of the recent past gets less of
the surplus now, and one that has had less gets more. What is deserved is never touched by the past. The form (weight
corrected by the difference between entitlement and decayed use) is that of time-based fair share in batch systems;
guaranteed plus weighted surplus is max-min fairness with minimum rates (Bertsekas and Gallager, Data Networks, 6.5).

Amounts are floats inside, because shares divide; they are compared with a tolerance of ``EPSILON`` of a unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

EPSILON = 1e-6
HISTORY_STRENGTH = 1.0
WEIGHT_FLOOR_RATIO = 0.05


class Amount(NamedTuple):
    """A quantity of everything that queues count. ``gpu_milli`` is thousandths of devices: a whole number, or a multiple of
    ``2 ** -20``, so that sums are exact."""

    gpu_milli: float = 0
    cpu_milli: int = 0
    host_memory_mib: int = 0

    def minus(self, other: Amount) -> Amount:
        return Amount(self[0] - other[0], self[1] - other[1], self[2] - other[2])

    def within(self, bound: Sequence[float]) -> bool:
        """No resource that is asked for exceeds the bound; what is not asked for cannot exceed anything."""
        return all(mine <= most + EPSILON for mine, most in zip(self, bound, strict=True) if mine > 0)


def total(amounts: Iterable[Amount]) -> Amount:
    """The sum."""
    gpu_milli: float = 0
    cpu_milli = host_memory_mib = 0
    for amount in amounts:
        gpu_milli += amount[0]
        cpu_milli += amount[1]
        host_memory_mib += amount[2]
    return Amount(gpu_milli, cpu_milli, host_memory_mib)


ZERO = Amount()
RESOURCES = len(ZERO)
Shares = list[list[float]]
"""One row per queue, one column per resource of ``Amount``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueShares:
    """Shares of all queues: ``guaranteed[q][r]`` is in quota, ``fair[q][r]`` includes the share of the surplus."""

    guaranteed: Shares
    fair: Shares


def pour(available: float, caps: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Water-filling: divide ``available`` in proportion to ``weights``, nobody above its cap.

    Returns one amount per cap; their sum is min(available, sum of caps with a positive weight).
    """
    given = [0.0] * len(caps)
    glasses = sorted(
        (i for i in range(len(caps)) if weights[i] > 0 and caps[i] > 0), key=lambda i: caps[i] / weights[i]
    )
    weight_left = sum(weights[i] for i in glasses)
    for i in glasses:
        if available <= 0:
            break
        given[i] = min(caps[i], available * weights[i] / weight_left) if weight_left > 0 else 0.0
        available -= given[i]
        weight_left -= weights[i]
    return given


def corrected_weights(weights: Sequence[float], past: Sequence[float], active: Sequence[bool]) -> list[float]:
    """Weights after the past: ``past[i]`` is decayed use above what was deserved, in any common unit.

    Weights and past use are brought to sum 1 over the active queues; the difference is added to the weight, which
    never falls below WEIGHT_FLOOR_RATIO of itself, so that no past, however greedy, starves a queue.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """What a division depends on. Queue 0 is the root; parents come before their children.

    Args:
        children: indices of the children of each queue.
        deserved, demand: amounts per queue and resource; demand is what runs plus what waits, at most the limit.
        weights: over-quota weight per queue.
        past: decayed use above the deserved amount, per queue, in cluster seconds.
    """

    children: Sequence[Sequence[int]]
    deserved: Shares
    demand: Shares
    weights: Sequence[float]
    past: Sequence[float]


def divide(tree: Tree, capacity: Sequence[float]) -> QueueShares:
    """Pour the capacity down the tree; see the theory of operation."""
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


def _divide_level(tree: Tree, parent: int, resource: int, guaranteed: Shares, fair: Shares) -> None:
    kids = tree.children[parent]
    demand = [tree.demand[k][resource] for k in kids]
    due = [min(tree.deserved[k][resource], d) for k, d in zip(kids, demand, strict=True)]
    promised = guaranteed[parent][resource]
    # More deserved than there is: everybody gets the same proportion of it.
    sure = due if sum(due) <= promised + EPSILON else pour(promised, due, due)
    weights = [tree.weights[k] for k in kids]
    unmet = [d - s for d, s in zip(demand, sure, strict=True)]
    if parent != 0:
        extra = pour(promised - sum(sure), unmet, weights)
        sure = [s + e for s, e in zip(sure, extra, strict=True)]
        unmet = [d - s for d, s in zip(demand, sure, strict=True)]
    narrowed = corrected_weights(weights, [tree.past[k] for k in kids], [u > EPSILON for u in unmet])
    surplus = pour(max(0.0, fair[parent][resource] - sum(sure)), unmet, narrowed)
    for kid, base, extra_amount in zip(kids, sure, surplus, strict=True):
        guaranteed[kid][resource] = base
        fair[kid][resource] = base + extra_amount
