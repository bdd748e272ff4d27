"""Upper bounds of the allocation that any policy can reach in the experiment "arrivals", by linear programming.

Theory of operation. Equal nodes (CPU, memory, devices, model) form a class. The linear program chooses the number of requests
of each shape that are placed in each class, and the number of devices of the class that are divided by each maximal pattern of
shares, so that the patterns cover the placed requests. CPU and memory are pooled over the class. Requests for k devices also
need one of the floor(devices / k) blocks of each node. Pooling and fractional counts relax the problem, so the optimum is an
upper bound for every policy, even with complete foresight and any number of moves. Two bounds are computed. "free" may reject
any request. "no reject" must place every request without a device model that arrives before 99 % of the fluid limit
(``tables.learn``), as all policies of the scheduler do; a policy that rejects on purpose is an admission policy. Labels, taints
and device memory are ignored, which relaxes the problem further. The program is the cutting-stock program of Gilmore and
Gomory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from calabash.model.errors import CalabashError
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.shape import WHOLE_MILLI, Shape
from calabash.sched.cluster.spec import NodeSpec
from calabash.sched.policies.tables import learn, maximal_patterns
from calabash.sim.arrivals import arrival_order
from calabash.sim.workload import Workload

KEPT_OF_FLUID_LIMIT = 0.99
PATTERNS_MAX = 6000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Highest possible allocation ratio at the end of one arrival sequence, 0..1.

    Attributes:
        fluid_limit: requested divided by installed compute up to which all of the demand can be placed.
        no_reject: bound for policies that place all requests without a device model before 99 % of the fluid limit; None if
            that is impossible.
        free: bound for policies that may reject any request.
    """

    fluid_limit: float
    no_reject: float | None
    free: float


@dataclass(frozen=True, slots=True)
class _Class:
    cpu_milli: int
    memory_mib: int
    devices: int
    model: str


def arrivals_bound(nodes: Sequence[NodeSpec], workload: Workload, seed: int) -> Bound:
    """Return the bounds for the arrival sequence of a seed.

    Raises:
        CalabashError: the cluster has no device, or a node has devices of several models.
    """
    cluster = Cluster(nodes, order_seed=None)
    installed = WHOLE_MILLI * cluster.gpu_total
    if not installed:
        raise CalabashError(f"{len(nodes)} nodes have no device", hint="use a cluster with devices")
    arrived = [workload.requests[index].shape for index in arrival_order(workload, installed, seed)]
    limit = learn(workload.demand, cluster).fluid_limit
    free = allocation_bound(nodes, arrived, kept_until=0.0)
    assert free is not None  # placing nothing is always possible
    kept = allocation_bound(nodes, arrived, kept_until=KEPT_OF_FLUID_LIMIT * limit)
    return Bound(fluid_limit=limit, no_reject=kept, free=free)


def allocation_bound(nodes: Sequence[NodeSpec], arrived: Sequence[Shape], *, kept_until: float) -> float | None:
    """Return the largest possible allocation ratio, or None if the requests that must be placed do not fit.

    Args:
        arrived: shapes in order of arrival.
        kept_until: ratio of requested to installed compute up to which no request may be rejected, except requests that
            name device models.
    """
    classes = _classes(nodes)
    installed = WHOLE_MILLI * sum(kind.devices * count for kind, count in classes.items())
    totals: dict[Shape, int] = {}
    kept: dict[Shape, int] = {}
    asked = 0
    for shape in arrived:
        asked += shape.gpu_total_milli
        totals[shape] = totals.get(shape, 0) + 1
        if asked <= kept_until * installed and not shape.models:
            kept[shape] = kept.get(shape, 0) + 1
    program = _Program(classes, list(totals))
    for shape, count in totals.items():
        program.constrain_count(shape, most=count, least=kept.get(shape, 0))
    milli = program.solve()
    return None if milli is None else milli / installed


def _classes(nodes: Sequence[NodeSpec]) -> dict[_Class, int]:
    classes: dict[_Class, int] = {}
    for node in nodes:
        models = {gpu.model for gpu in node.gpus}
        if len(models) > 1:
            raise CalabashError(
                f"node {node.name} has devices of {len(models)} models", hint="use nodes with devices of one model each"
            )
        kind = _Class(node.cpu_milli, node.memory_mib, len(node.gpus), next(iter(models), ""))
        classes[kind] = classes.get(kind, 0) + 1
    return classes


def _sizes(shapes: Sequence[Shape]) -> tuple[list[int], list[tuple[int, ...]]]:
    """Return the sizes of the shares of a device that are requested, largest first, and all maximal patterns of them.

    A maximal pattern divides one device into shares so that no further share fits. It is given as the number of shares
    of each size.

    If there are more than PATTERNS_MAX patterns, the sizes with the smallest gaps are rounded down to the next size. This
    relaxes the problem, so the result is still an upper bound.
    """
    sizes = sorted({s.gpu_milli for s in shapes if s.gpu_count and 0 < s.gpu_milli < WHOLE_MILLI}, reverse=True)
    while True:
        patterns = maximal_patterns(sizes, limit=PATTERNS_MAX + 1)
        if len(patterns) <= PATTERNS_MAX:
            return sizes, patterns
        gaps = [size - lower for size, lower in zip(sizes, [*sizes[1:], 0], strict=True)]
        sizes.pop(gaps.index(min(gaps)))


@dataclass(slots=True)
class _Program:
    """Sparse linear program whose optimum is an upper bound of the allocation (see the description of the module).

    Its variables are first the number of placed requests for each class of nodes and shape, then, for each class, the
    number of devices that are divided by each pattern.

    Attributes:
        classes: number of nodes of each class.
        placed: index of the variable for a class and a shape.
        worth: coefficient of each variable in the objective: device compute of a request in milli, 0 for a pattern.
        rows, columns, values: nonzero entries of the constraint matrix.
        limits: upper bound of each constraint.
    """

    classes: dict[_Class, int]
    shapes: list[Shape]
    placed: dict[tuple[_Class, Shape], int] = field(default_factory=dict)
    worth: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        for kind in self.classes:
            for shape in self.shapes:
                if _fits(shape, kind):
                    self.placed[kind, shape] = len(self.worth)
                    self.worth.append(float(shape.gpu_total_milli))
        sizes, patterns = _sizes(self.shapes)
        by_size: dict[int, list[tuple[int, int]]] = {size: [] for size in sizes}
        for index, pattern in enumerate(patterns):
            for size, count in zip(sizes, pattern, strict=True):
                if count:
                    by_size[size].append((index, count))
        for kind, count in self.classes.items():
            self._add_class(kind, count, by_size, len(patterns))

    def _add_class(self, kind: _Class, count: int, by_size: dict[int, list[tuple[int, int]]], patterns: int) -> None:
        here = [(shape, self.placed[kind, shape]) for shape in self.shapes if (kind, shape) in self.placed]
        self._add_row([(column, shape.cpu_milli) for shape, column in here], count * kind.cpu_milli)
        self._add_row([(column, shape.memory_mib) for shape, column in here], count * kind.memory_mib)
        if not kind.devices:
            return
        cut = len(self.worth)
        self.worth.extend([0.0] * patterns)
        whole = [(column, shape.gpu_count) for shape, column in here if shape.gpu_milli == WHOLE_MILLI]
        self._add_row([*whole, *((cut + index, 1) for index in range(patterns))], count * kind.devices)
        # implied by the patterns, unless sizes were rounded down
        compute = [(column, shape.gpu_total_milli) for shape, column in here]
        self._add_row(compute, count * kind.devices * WHOLE_MILLI)
        for size, uses in by_size.items():
            larger = min((other for other in by_size if other > size), default=WHOLE_MILLI)
            shares = [(column, shape.gpu_count) for shape, column in here if size <= shape.gpu_milli < larger]
            if shares:
                self._add_row([*shares, *((cut + index, -number) for index, number in uses)], 0)
        for devices in sorted({shape.gpu_count for shape, _ in here if shape.gpu_count > 1}):
            blocks = [
                (column, shape.gpu_count // devices)
                for shape, column in here
                if shape.gpu_count >= devices and shape.gpu_milli == WHOLE_MILLI
            ]
            self._add_row(blocks, count * (kind.devices // devices))

    def constrain_count(self, shape: Shape, *, most: int, least: int) -> None:
        """Require that from ``least`` to ``most`` requests of a shape are placed, summed over all classes of nodes."""
        columns = [column for (_, other), column in self.placed.items() if other is shape]
        self._add_row([(column, 1) for column in columns], most)
        if least and columns:
            self._add_row([(column, -1) for column in columns], -least)

    def _add_row(self, entries: Sequence[tuple[int, float]], limit: float) -> None:
        row = len(self.limits)
        self.limits.append(float(limit))
        for column, value in entries:
            if value:
                self.rows.append(row)
                self.columns.append(column)
                self.values.append(float(value))

    def solve(self) -> float | None:
        """Return the largest sum of placed device compute in milli, or None if the constraints cannot be met."""
        shape = (len(self.limits), len(self.worth))
        matrix = coo_matrix((self.values, (self.rows, self.columns)), shape=shape).tocsr()
        solved = linprog(-np.array(self.worth) / WHOLE_MILLI, A_ub=matrix, b_ub=self.limits, method="highs")
        return float(-solved.fun) * WHOLE_MILLI if solved.status == 0 else None


def _fits(shape: Shape, kind: _Class) -> bool:
    amounts = shape.cpu_milli <= kind.cpu_milli and shape.memory_mib <= kind.memory_mib
    model = not shape.gpu_count or not shape.models or kind.model in shape.models
    return amounts and model and shape.gpu_count <= kind.devices
