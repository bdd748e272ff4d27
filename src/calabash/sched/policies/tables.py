"""Tables of the value of free resources, learned from demand: gaps, CPU balance, blocks of cards, scarce models.

Theory of operation. Dividing devices into slices is a cutting-stock problem. The duals of its linear program, "the largest
multiple of this demand that can be packed", are the prices of the slice sizes: 0.81 of a card costs as much as a whole one (no
request fills the rest), 0.47 half a card, and small slices almost nothing, because they fill remainders. The value of a gap is
that of its best filling at these prices (an unbounded knapsack over 1001 sizes). CPU is valued by balance: with the demand
sorted by CPU per card, the part that the CPU of a node can serve is a Lorenz curve, and the cards beyond it are lost. ``spare``
gives the value of CPU when it is the scarce resource. Sources: the column generation of Gilmore and Gomory, and the
measurements in docs/concepts/placement.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.columns import Floats
from calabash.sched.cluster.demand import Demand
from calabash.sched.cluster.shape import WHOLE_MILLI, Shape
from calabash.sched.policies.spare import SpareCpu, cpu_pressure, learn_spare

LORENZ_STEP_VCPU = 0.25
LORENZ_POINTS = 512
PATTERNS_MAX = 20_000
SIZES_MAX = 40
BLOCKS_MAX, HOST_BLOCKS_MAX = 64, 32
# Interpolation points: ratio of CPU demand to supply at full device demand, and the weight of CPU-only requests there.
CPU_TIGHTNESS = ((0.84, 0.88, 0.96, 1.0), (0.0, 1.0, 1.0, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Values of free resources for one demand on one cluster.

    Attributes:
        fluid_limit: largest fraction of the cluster's compute that requests of this demand can use (1.0 is all of it).
        gap_value: value in cards of a gap, by its size from 0 to 1000 milli.
        fed_share: entry i is the part of the device demand that i * LORENZ_STEP_VCPU vCPU per card can serve.
        blocks: (devices, cpu_milli, weight) of the shapes of several devices; the weight is the shape's part of the device
            demand times its devices. Shapes of similar CPU are grouped if there are more than BLOCKS_MAX.
        host_blocks: (cpu_milli, weight) of the CPU-only shapes; the weight is the shape's part of all requests, and 0 unless
            CPU is tight. Grouped if there are more than HOST_BLOCKS_MAX.
        scarcity: by model, the ratio of the demand that requires the model to its supply at full load, at most 1.
        spare: parameters of spare CPU; None unless CPU is the scarce resource.
    """

    fluid_limit: float
    gap_value: Floats
    fed_share: Floats
    blocks: tuple[tuple[int, int, float], ...]
    host_blocks: tuple[tuple[int, float], ...]
    scarcity: dict[str, float]
    spare: SpareCpu | None = None


def neutral() -> Tables:
    """Return the tables for an unknown demand: the value of a gap is its size, and CPU is never short."""
    return Tables(
        fluid_limit=1.0,
        gap_value=np.arange(WHOLE_MILLI + 1) / WHOLE_MILLI,
        fed_share=np.ones(LORENZ_POINTS),
        blocks=(),
        host_blocks=(),
        scarcity={},
    )


def learn(demand: Demand, cluster: Cluster) -> Tables:
    """Return the tables for a demand on a cluster; neutral ones if no device is requested. Takes well under a second."""
    shapes = [(shape, count) for shape, count in demand.counts.items() if shape.gpu_total_milli]
    if not shapes or not cluster.gpu_total:
        return neutral()
    total = sum(shape.gpu_total_milli * count for shape, count in shapes) / WHOLE_MILLI
    limit, prices = _prices(shapes, cluster.gpu_total)
    return Tables(
        fluid_limit=limit,
        gap_value=_knapsack(prices),
        fed_share=_lorenz(shapes),
        blocks=_blocks(shapes, total),
        host_blocks=_host_blocks(demand, cluster),
        scarcity=_scarcity(shapes, total, cluster),
        spare=learn_spare(demand, cluster),
    )


def maximal_patterns(sizes: list[int], *, limit: int = 0) -> list[tuple[int, ...]]:
    """Return the ways to divide one device into slices of some sizes so that no further slice fits.

    Args:
        sizes: sizes in milli, largest first.
        limit: most patterns to return; 0 for all.

    Returns:
        For each pattern the number of slices of each size.
    """
    found: list[tuple[int, ...]] = []

    def cut(index: int, left: int, taken: tuple[int, ...]) -> None:
        if limit and len(found) >= limit:
            return
        if index == len(sizes) - 1:
            found.append((*taken, left // sizes[index]))
            return
        for count in range(left // sizes[index], -1, -1):
            cut(index + 1, left - count * sizes[index], (*taken, count))

    if not sizes:
        return [()]
    cut(0, WHOLE_MILLI, ())
    return found


def _prices(shapes: list[tuple[Shape, int]], device_count: int) -> tuple[float, dict[int, float]]:
    """Return the fluid limit, and the price in cards of each slice size, from the duals of the cutting-stock program."""
    from scipy.optimize import linprog  # noqa: PLC0415 - only learning needs it

    counts: dict[int, float] = {}
    whole = 0.0
    for shape, count in shapes:
        if shape.gpu_milli < WHOLE_MILLI:
            counts[shape.gpu_milli] = counts.get(shape.gpu_milli, 0.0) + count * shape.gpu_count
        else:
            whole += shape.gpu_count * count
    counts = _coarse(counts)
    scale = device_count / (sum(size * n for size, n in counts.items()) / WHOLE_MILLI + whole)
    sizes = sorted(counts, reverse=True)
    found = maximal_patterns(sizes, limit=PATTERNS_MAX)
    patterns = np.array(found, float).reshape(len(found), len(sizes))
    ones = np.ones((1, len(patterns)))
    served = np.hstack([np.array([[counts[size] * scale] for size in sizes]).reshape(-1, 1), -patterns.T])
    devices = np.hstack([np.array([[whole * scale]]), ones])
    bounds = np.append(np.zeros(len(sizes)), device_count)
    objective = np.zeros(1 + len(patterns))
    objective[0] = -1.0
    solved = linprog(objective, A_ub=np.vstack([served, devices]), b_ub=bounds, method="highs")
    if solved.status != 0:  # not expected, because the program is bounded and feasible; use the sizes as prices
        return 1.0, {size: size / WHOLE_MILLI for size in (*sizes, WHOLE_MILLI)}
    duals = -solved.ineqlin.marginals
    limit = float(-solved.fun)
    per_device = limit / float(duals[-1]) if duals[-1] > 0 else 1.0
    prices = {size: float(duals[index]) * per_device for index, size in enumerate(sizes)}
    if whole:
        prices[WHOLE_MILLI] = limit
    return limit, prices


def _coarse(counts: dict[int, float]) -> dict[int, float]:
    """Return the demand for slices of at most SIZES_MAX sizes.

    The rarest sizes are rounded up to the next larger one, to limit the number of patterns.

    Args:
        counts: demand by size in milli.
    """
    if len(counts) <= SIZES_MAX:
        return counts
    kept = sorted([*sorted(counts, key=lambda size: counts[size] * size, reverse=True)[: SIZES_MAX - 1], WHOLE_MILLI])
    merged: dict[int, float] = {}
    for size, count in counts.items():
        up = next(k for k in kept if k >= size)
        merged[up] = merged.get(up, 0.0) + count
    merged.pop(WHOLE_MILLI, None)
    return merged or counts


def _knapsack(prices: dict[int, float]) -> Floats:
    """Return by size of a gap, from 0 to 1000 milli, the value in cards of the best slices that fill it.

    Args:
        prices: price in cards of each slice size in milli.
    """
    value = np.zeros(WHOLE_MILLI + 1)
    items = [(size, price) for size, price in prices.items() if price > 0]
    for gap in range(1, WHOLE_MILLI + 1):
        value[gap] = max([value[gap - 1], *(price + value[gap - size] for size, price in items if size <= gap)])
    return value


def _lorenz(shapes: list[tuple[Shape, int]]) -> Floats:
    """Return ``Tables.fed_share``: for each amount of CPU per card, the part of the device demand that it can serve."""
    cards = np.array([shape.gpu_total_milli * count / WHOLE_MILLI for shape, count in shapes])
    vcpu_per_card = np.array([shape.cpu_milli / shape.gpu_total_milli for shape, _ in shapes])
    order = np.argsort(vcpu_per_card, kind="stable")
    share = cards[order] / cards.sum()
    needed = np.append(0.0, np.cumsum(vcpu_per_card[order] * share))
    fed = np.append(0.0, np.cumsum(share))
    found: Floats = np.interp(np.arange(LORENZ_POINTS) * LORENZ_STEP_VCPU, needed, fed)
    return found


def _blocks(shapes: list[tuple[Shape, int]], total: float) -> tuple[tuple[int, int, float], ...]:
    weights: dict[int, dict[int, float]] = {}  # by devices and CPU
    for shape, count in shapes:
        if shape.gpu_count > 1:
            by_cpu = weights.setdefault(shape.gpu_count, {})
            by_cpu[shape.cpu_milli] = by_cpu.get(shape.cpu_milli, 0.0) + shape.gpu_count * count
    most = BLOCKS_MAX if sum(map(len, weights.values())) <= BLOCKS_MAX else max(1, BLOCKS_MAX // len(weights))
    return tuple(
        (devices, max(cpu, 1), weight / total * devices)
        for devices, by_cpu in sorted(weights.items())
        for cpu, weight in _grouped(by_cpu, most)
    )


def _grouped(weights: dict[int, float], most: int) -> list[tuple[int, float]]:
    """Return amounts in ascending order with their weights, combined into at most ``most`` groups.

    The groups have about equal weights. The amount of a group is the largest amount in it.

    Args:
        weights: weight of each amount.
    """
    amounts = sorted(weights.items())
    if len(amounts) <= most:
        return amounts
    each = sum(weights.values()) / most
    groups: dict[int, list[tuple[int, float]]] = {}
    passed = 0.0
    for amount, weight in amounts:
        groups.setdefault(min(int(passed / each), most - 1), []).append((amount, weight))
        passed += weight
    return [(group[-1][0], sum(weight for _, weight in group)) for group in groups.values()]


def _host_blocks(demand: Demand, cluster: Cluster) -> tuple[tuple[int, float], ...]:
    """Return ``Tables.host_blocks``: the CPU sizes of the CPU-only shapes with their weights.

    The weights are positive only if CPU is tight but sufficient. With plenty of CPU no request is refused, and with too
    little some request is refused in any case.
    """
    counts: dict[int, float] = {}
    for shape, count in demand.counts.items():
        if not shape.gpu_count and shape.cpu_milli:
            counts[shape.cpu_milli] = counts.get(shape.cpu_milli, 0) + count
    if not counts:
        return ()
    tightness = float(np.interp(cpu_pressure(demand, cluster), *CPU_TIGHTNESS))
    everything = sum(demand.counts.values())
    return tuple((cpu, tightness * count / everything) for cpu, count in _grouped(counts, HOST_BLOCKS_MAX))


def _scarcity(shapes: list[tuple[Shape, int]], total: float, cluster: Cluster) -> dict[str, float]:
    present = np.arange(cluster.width) < cluster.gpu_count[:, None]
    counts = np.bincount(cluster.gpu_model[present], minlength=len(cluster.models))
    supply = {name: int(counts[code]) for name, code in cluster.models.items()}
    wanted: dict[str, float] = {}
    for shape, count in shapes:
        accepted = [model for model in shape.models if supply.get(model)]
        offered = sum(supply[model] for model in accepted)
        for model in accepted:
            amount = shape.gpu_total_milli * count / WHOLE_MILLI * supply[model] / offered
            wanted[model] = wanted.get(model, 0.0) + amount
    scale = cluster.gpu_total / total
    return {model: min(1.0, amount * scale / supply[model]) for model, amount in wanted.items()}
