"""Simulation of the experiment "arrivals": requests arrive up to 130 % of the cluster's compute, and none departs.

The experiment is that of Weng et al., USENIX ATC'23. The trace is shuffled once. Then requests drawn at random with
replacement are appended until the next one would exceed 130 % of the device compute of the cluster. If the trace
already exceeds 130 %, random requests are removed instead. Requests are placed one at a time, without a queue and
without retries. The allocation ratio is allocated divided by installed device compute, after every arrival.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.engine import Engine
from calabash.sched.cluster.scoring import PlacementPolicy
from calabash.sched.cluster.shape import WHOLE_MILLI, Shape
from calabash.sched.cluster.spec import NodeSpec
from calabash.sim.results import RunResult
from calabash.sim.workload import Workload

FULL_RATIO = 1.3
CURVE_POINTS = 131


def arrival_order(workload: Workload, installed_milli: int, seed: int, ratio: float = FULL_RATIO) -> list[int]:
    """Return indices of the workload's requests in order of arrival.

    Args:
        installed_milli: device compute of the cluster.
        ratio: requested divided by installed device compute at the end.
    """
    rng = np.random.default_rng(seed)
    shapes = workload.shapes
    asked = [shape.gpu_total_milli for shape in shapes]
    order: list[int] = rng.permutation(len(shapes)).tolist()
    total, target = sum(asked), ratio * installed_milli
    if total > target:
        while total > target:
            total -= asked[order.pop(int(rng.integers(len(order))))]
        return order
    if total == 0:
        return order
    while True:
        index = int(rng.integers(len(shapes)))
        if total + shapes[index].gpu_milli > target:
            return order
        total += asked[index]
        order.append(index)


def simulate(nodes: Sequence[NodeSpec], workload: Workload, policy: PlacementPolicy, seed: int) -> RunResult:
    """Simulate the arrivals of one seed with one policy and return the result."""
    cluster = Cluster(nodes, order_seed=seed)
    engine = Engine(cluster, policy)
    installed = WHOLE_MILLI * cluster.gpu_total
    shapes = workload.shapes
    order = arrival_order(workload, installed, seed)
    arrived = np.zeros(len(order), np.int64)
    allocated = np.zeros(len(order), np.int64)
    tally = Tally()
    asked_milli = used_milli = 0
    began = time.perf_counter()
    for position, index in enumerate(order):
        shape = shapes[index]
        placement = engine.decide(shape)
        asked_milli += shape.gpu_total_milli
        if placement is not None:
            cluster.place(shape, placement)
            used_milli += shape.gpu_total_milli
        tally.count(shape, admitted=placement is not None)
        arrived[position] = asked_milli
        allocated[position] = used_milli
    elapsed = time.perf_counter() - began
    return RunResult(
        workload=workload.name,
        policy=policy.name,
        seed=seed,
        protocol="arrivals",
        arrivals=len(order),
        allocation_ratio_end=used_milli / installed if installed else 0.0,
        allocation_ratio_at_100=_ratio_at_full_demand(arrived, allocated, installed),
        decisions_per_s=len(order) / elapsed if elapsed > 0 else 0.0,
        curve=_curve(arrived, allocated, installed),
        **tally.ratios(),
    )


class Ratios(TypedDict):
    """Fields of RunResult that Tally computes: fractions of the arrived requests of a kind, 0..1."""

    cpu_only_admitted_ratio: float
    constrained_admitted_ratio: float
    rejected_8gpu_ratio: float


@dataclass(slots=True)
class Tally:
    """Counters of arrived and admitted requests by kind.

    Attributes:
        cpu_only, cpu_only_admitted: requests without devices.
        constrained, constrained_admitted: requests that name device models.
        large, large_refused: requests for eight devices.
    """

    cpu_only: int = 0
    cpu_only_admitted: int = 0
    constrained: int = 0
    constrained_admitted: int = 0
    large: int = 0
    large_refused: int = 0

    def count(self, shape: Shape, *, admitted: bool) -> None:
        """Count the arrival of a request in each kind to which it belongs."""
        if not shape.gpu_count:
            self.cpu_only += 1
            self.cpu_only_admitted += admitted
        if shape.models:
            self.constrained += 1
            self.constrained_admitted += admitted
        if shape.gpu_count == 8:
            self.large += 1
            self.large_refused += not admitted

    def ratios(self) -> Ratios:
        """Return the ratios. Without arrivals of a kind, admitted ratios are 1.0 and the rejected ratio is 0.0."""
        return {
            "cpu_only_admitted_ratio": self.cpu_only_admitted / self.cpu_only if self.cpu_only else 1.0,
            "constrained_admitted_ratio": self.constrained_admitted / self.constrained if self.constrained else 1.0,
            "rejected_8gpu_ratio": self.large_refused / self.large if self.large else 0.0,
        }


def _ratio_at_full_demand(arrived: npt.NDArray[np.int64], allocated: npt.NDArray[np.int64], installed: int) -> float:
    """Return the allocation ratio at the arrival at which the requested compute first reaches that of the cluster.

    Args:
        arrived, allocated: requested and allocated device compute in milli after each arrival.
        installed: device compute of the cluster in milli.
    """
    if not len(arrived) or not installed:
        return 0.0
    position = min(int(np.searchsorted(arrived, installed)), len(arrived) - 1)
    return float(allocated[position]) / installed


def _curve(arrived: npt.NDArray[np.int64], allocated: npt.NDArray[np.int64], installed: int) -> tuple[float, ...]:
    """Return the mean allocation ratio for each whole percent of arrived demand, 0 to 130.

    The demand is relative to the compute of the cluster. A percentage without an arrival has the value of the previous
    one.
    """
    if not installed:
        return ()
    percent = np.rint(arrived * 100.0 / installed).astype(np.int64)
    sums = np.bincount(percent, weights=allocated / installed, minlength=CURVE_POINTS)[:CURVE_POINTS]
    counts = np.bincount(percent, minlength=CURVE_POINTS)[:CURVE_POINTS]
    curve, last = [], 0.0
    for total, count in zip(sums, counts, strict=True):
        last = total / count if count else last
        curve.append(round(float(last), 6))
    return tuple(curve)
