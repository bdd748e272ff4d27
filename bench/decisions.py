"""Cost of placement decisions on one core, at three sizes of cluster.

The openb nodes once, 8 and 16 times over (6,212, about 50,000 and 100,000 devices) are filled by policy ``pgb`` to
about 96, 90 and 45 percent; every arrival is one decision and, where it fits, one placement, and both are timed
together. Then the level is held: every arrival is followed by the departure of the oldest. A shape that is asked for
the first time is cold; all of them are asked for once on the empty cluster and counted apart. Last, a shape that fits
nowhere is asked for again and again.

Times are the thread's own processor time. Other work on the machine changes it, for decisions read much memory and
find their caches used by others. So the goals are ratios to a short loop over a dictionary (``bench._reference``)
that runs after every 64th decision and finds the caches as decisions do. Decisions per second, and the 99th
percentile by the wall clock, are for information.
"""

from __future__ import annotations

import importlib
import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import numpy as np

from bench._reference import short_loop_s
from bench._report import Report, run
from bench._traces import Traces, load
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.engine import Engine
from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.cluster.spec import NodeSpec
from calabash.sched.policies.registry import policy_named
from calabash.sim.workload import Workload, replicate

KB_PER_NODE_MAX = 100
LOOP_EVERY = 64  # decisions
LOOP = "loop between decisions"
# Goals: of the mean loop between decisions.
P99_MAX = 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A cluster: copies of the trace's nodes, fill level, and the goal of a decision in units of the loop between decisions."""

    copies: int
    fill: float
    goal: float


SIZES = (
    Size(copies=1, fill=0.96, goal=1.5),
    Size(copies=8, fill=0.90, goal=1.7),
    Size(copies=16, fill=0.45, goal=2.0),
)


@dataclass(slots=True)
class Times:
    """Times of every decision in ns, of processor and wall clock, and of the loops between them in seconds."""

    own_ns: list[int] = field(default_factory=list)
    wall_ns: list[int] = field(default_factory=list)
    loops_s: list[float] = field(default_factory=list)

    @property
    def loop_us(self) -> float:
        """Return the mean time of the loops."""
        return 1e6 * fmean(self.loops_s)


class World:
    """A cluster under one policy, with its placements, oldest first."""

    def __init__(self, nodes: list[NodeSpec], workload: Workload, *, seed: int) -> None:
        self.shapes = workload.shapes
        self.cluster = Cluster(nodes, order_seed=seed)
        self.engine = Engine(self.cluster, policy_named("pgb", demand=workload.demand, seed=seed))
        self.placed: deque[tuple[Shape, NodePlacement]] = deque()
        self._rng = np.random.default_rng(seed)
        self.used_milli = 0

    def draws(self) -> Iterator[Shape]:
        """Yield shapes of the workload, drawn uniformly, without end."""
        while True:
            for index in self._rng.integers(0, len(self.shapes), 4096).tolist():
                yield self.shapes[index]

    def fill(self, level: float, draws: Iterator[Shape]) -> Times:
        """Place until ``level`` is allocated or 400 requests in a row do not fit."""
        wanted = level * 1000 * self.cluster.gpu_total
        missed, times = 0, Times()
        while self.used_milli < wanted and missed < 400:
            missed = 0 if self._step(next(draws), times) else missed + 1
        return times

    def hold(self, decisions: int, draws: Iterator[Shape]) -> Times:
        """Make ``decisions`` arrivals; the oldest depart whenever more is allocated than at the start."""
        level, times = self.used_milli, Times()
        for _ in range(decisions):
            self._step(next(draws), times)
            while self.used_milli > level:
                shape, placement = self.placed.popleft()
                self.cluster.release(shape, placement)
                self.used_milli -= shape.gpu_total_milli
        return times

    def _step(self, shape: Shape, times: Times) -> bool:
        """Decide and place one request; return True if it fits."""
        if len(times.own_ns) % LOOP_EVERY == 0:
            times.loops_s.append(short_loop_s())
        wall, own = time.perf_counter_ns(), time.thread_time_ns()
        placement = self.engine.decide(shape)
        if placement is not None:
            self.cluster.place(shape, placement)
        times.own_ns.append(time.thread_time_ns() - own)
        times.wall_ns.append(time.perf_counter_ns() - wall)
        if placement is None:
            return False
        self.placed.append((shape, placement))
        self.used_milli += shape.gpu_total_milli
        return True

    @property
    def bytes_per_node(self) -> float:
        """Return the memory of the arrays and the engine's caches, per node."""
        arrays = sum(value.nbytes for value in vars(self.cluster).values() if isinstance(value, np.ndarray))
        return (arrays + self.engine.memory_bytes) / self.cluster.node_count


def measure_size(report: Report, traces: Traces, size: Size, *, empty_bytes: int) -> None:
    """Measure one size of cluster."""
    workload = next(iter(traces.workloads.values()))
    world = World(replicate(traces.nodes, size.copies), workload, seed=42)
    devices = world.cluster.gpu_total
    name = f"{devices:,} devices"
    goals = traces.published
    draws = world.draws()
    cold = _cold_us(world)
    filling = world.fill(size.fill, draws)
    detail = f"{len(filling.own_ns):,} decisions, filled to {world.used_milli / 10 / devices:.1f} %"
    _rate(report, f"{name}: filling", filling, goal=size.goal if goals else None, detail=detail)
    _percentiles(report, f"{name}: filling", filling, with_goal=goals)
    level = world.hold(2_000 if report.quick else 20_000, draws)
    detail = "every arrival with a departure, which is not timed"
    _rate(report, f"{name}: holding", level, goal=None, detail=detail)
    _percentiles(report, f"{name}: holding", level, with_goal=goals)
    report.add(f"{name}: cold shape, longest", max(cold), "us", detail=f"of {len(cold)} shapes")
    arrays = (
        f"{world.bytes_per_node / 1000:.1f} KB of arrays and caches, {len(cold)} shapes; the rest is Python objects"
    )
    grown = (_resident_bytes() - empty_bytes) / 1000 / world.cluster.node_count
    report.add(f"{name}: memory per node", grown, "KB", at_most=KB_PER_NODE_MAX, detail=arrays)
    report.add(f"{name}: repeat of an infeasible shape", _infeasible_us(world), "us")


def _rate(report: Report, name: str, times: Times, *, goal: float | None, detail: str) -> None:
    """Record decisions per second, and the mean decision as a ratio to the mean loop between decisions."""
    mean_us = fmean(times.own_ns) / 1000
    report.add(name, 1e6 / mean_us, "/s", detail=detail)
    report.add_ratio(f"{name}, mean", mean_us, times.loop_us, "us", of=LOOP, at_most=goal)


def _percentiles(report: Report, name: str, times: Times, *, with_goal: bool) -> None:
    p50, p99 = np.percentile(times.own_ns, (50, 99)) / 1000
    wall = float(np.percentile(times.wall_ns, 99)) / 1000
    report.add(f"{name}, p50", float(p50), "us")
    goal, detail = P99_MAX if with_goal else None, f"{wall:.0f} us by the wall clock"
    report.add_ratio(f"{name}, p99", float(p99), times.loop_us, "us", of=LOOP, at_most=goal, detail=detail)
    report.add(f"{name}, longest", max(times.own_ns) / 1000, "us")


def _resident_bytes() -> int:
    """Return the physical memory of this process, which includes the benchmark's own records."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _cold_us(world: World) -> list[float]:
    """Return the time of the first decision of every shape on the empty cluster, in microseconds, without placing."""
    took = []
    for shape in dict.fromkeys(world.shapes):
        began = time.thread_time_ns()
        world.engine.decide(shape)
        took.append((time.thread_time_ns() - began) / 1000)
    return took


def _infeasible_us(world: World, repeats: int = 2000) -> float:
    """Return the mean time to refuse a request again that no node can hold, in microseconds."""
    shape = Shape(cpu_milli=10**7, gpu_count=1, gpu_milli=1000)
    if world.engine.decide(shape) is not None:
        raise AssertionError("a request of 10,000 vCPU was placed")
    began = time.thread_time_ns()
    for _ in range(repeats):
        world.engine.decide(shape)
    return (time.thread_time_ns() - began) / 1000 / repeats


def measure(report: Report) -> None:
    """Measure all sizes."""
    traces = load(report, ("default",))
    importlib.import_module("scipy.optimize")  # learning needs it; no part of what a node costs
    empty_bytes = _resident_bytes()
    for size in SIZES:
        measure_size(report, traces, size, empty_bytes=empty_bytes)


if __name__ == "__main__":
    run("decisions", "Decisions", measure)
