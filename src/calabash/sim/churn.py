"""Simulation of the experiment "churn": Poisson arrivals, exponential lifetimes, and requests that do not fit are lost.

The load is offered divided by installed device compute. The unit of time is the mean lifetime. After a warm-up of four
lifetimes, six lifetimes are measured: the allocation is averaged over time, and rejected requests and moves are
counted. With defragmentation, a request for several devices that does not fit may move a bounded number of running
requests (``sched.actions.defragment``). Failures take nodes out of service and end all requests on them (``failures``);
ended requests are counted and not started again.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from calabash.model.errors import CalabashError
from calabash.sched.actions.defragment import Occupant, find_moves
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.engine import Engine
from calabash.sched.cluster.placer import ClusterPlacer
from calabash.sched.cluster.scoring import PlacementPolicy
from calabash.sched.cluster.shape import WHOLE_MILLI, NodePlacement, Shape
from calabash.sched.cluster.spec import NodeSpec
from calabash.sched.cluster.transaction import Transaction
from calabash.sim.arrivals import Tally
from calabash.sim.failures import Failures, NodeChange, draw
from calabash.sim.results import RunResult
from calabash.sim.workload import Workload

WARM_LIFETIMES = 4.0
MEASURED_LIFETIMES = 6.0
MOVES_MAX = 16
LOAD_MAX = 100.0


@dataclass(slots=True)
class _RunningPods:
    """Running pods and their placements, by pod and by node."""

    cluster: Cluster
    engine: Engine
    placed: dict[int, tuple[Shape, NodePlacement]] = field(default_factory=dict)
    on_node: dict[int, set[int]] = field(default_factory=dict)

    def start(self, pod: int, shape: Shape, placement: NodePlacement) -> None:
        self.placed[pod] = (shape, placement)
        self.on_node.setdefault(placement.node, set()).add(pod)

    def end(self, pod: int) -> Shape:
        shape, placement = self.placed.pop(pod)
        self.on_node[placement.node].discard(pod)
        self.cluster.release(shape, placement)
        return shape

    def move(self, pod: int, placement: NodePlacement) -> None:
        shape, old = self.placed[pod]
        self.on_node[old.node].discard(pod)
        self.start(pod, shape, placement)

    def change_node(self, change: NodeChange) -> list[Shape]:
        """Apply the failure or recovery of a node, and return the shapes of the pods that a failure ends."""
        self.cluster.cordon(change.row, schedulable=change.up)
        return [] if change.up else [self.end(pod) for pod in sorted(self.on_node.get(change.row, ()))]

    def occupants(self, row: int) -> Iterator[Occupant]:
        for pod in sorted(self.on_node.get(row, ())):
            shape, placement = self.placed[pod]
            yield Occupant(id=str(pod), shape=shape, placement=placement)


def simulate(
    nodes: Sequence[NodeSpec],
    workload: Workload,
    policy: PlacementPolicy,
    seed: int,
    *,
    load: float,
    defragment: bool,
    failures: Failures | None = None,
) -> RunResult:
    """Simulate the experiment with one policy and one seed and return the result.

    Args:
        load: offered divided by installed device compute, above 0.
        defragment: move running requests to make room for requests for several devices.
        failures: rate and length of failures of nodes; None for none.

    Raises:
        CalabashError: the load is out of range, or the workload requests no devices.
    """
    cluster = Cluster(nodes, order_seed=seed)
    installed = WHOLE_MILLI * cluster.gpu_total
    shapes = workload.shapes
    mean_milli = float(np.mean([shape.gpu_total_milli for shape in shapes])) if shapes else 0.0
    if not 0 < load <= LOAD_MAX or not mean_milli:
        raise CalabashError(
            f"load {load} with {mean_milli:.0f} milli per request is out of range",
            hint=f"give a load above 0, at most {LOAD_MAX}, like 0.95, and requests for devices",
        )
    rng = np.random.default_rng(seed)
    rate = load * installed / mean_milli
    count = int(rate * (WARM_LIFETIMES + MEASURED_LIFETIMES))
    picks = rng.integers(0, len(shapes), count).tolist()
    arrives = np.cumsum(rng.exponential(1 / rate, count)).tolist()
    lives = rng.exponential(1.0, count).tolist()

    world = _RunningPods(cluster, Engine(cluster, policy))
    placer = ClusterPlacer(cluster, world.engine)
    board = Transaction(placer)
    measure = _Measure(tally=Tally())
    ends: list[tuple[float, int]] = []
    changes = draw(failures, cluster.node_count, arrives[-1] if arrives else 0.0, seed)[::-1]
    began = time.perf_counter()
    for pod, (pick, now) in enumerate(zip(picks, arrives, strict=True)):
        while (ends and ends[0][0] <= now) or (changes and changes[-1].at <= now):
            if not ends or (changes and changes[-1].at < ends[0][0]):
                measure.node_changed(changes[-1].at, world.change_node(changes.pop()))
                continue
            ended_at, other = heapq.heappop(ends)
            if other in world.placed:  # otherwise a failure of its node ended it before
                measure.advance(ended_at)
                measure.used_milli -= world.end(other).gpu_total_milli
        measure.advance(now)
        shape = shapes[pick]
        placement = world.engine.decide(shape)
        moved = 0
        if placement is not None:
            cluster.place(shape, placement)
        elif defragment and shape.gpu_count > 1:
            moves = find_moves(board, placer, shape, world.occupants, moves_max=MOVES_MAX)
            board.commit()
            if moves is not None:
                placement, moved = moves.placement, len(moves.moved)
                for occupant, target in moves.moved:
                    world.move(int(occupant.id), target)
        measure.arrival(shape, now, admitted=placement is not None, moved=moved)
        if placement is not None:
            world.start(pod, shape, placement)
            measure.used_milli += shape.gpu_total_milli
            heapq.heappush(ends, (now + lives[pod], pod))
    elapsed = time.perf_counter() - began
    return measure.result(
        RunResult(
            workload=workload.name,
            policy=policy.name,
            seed=seed,
            protocol="churn" + ("+defrag" if defragment else "") + ("+failures" if failures else ""),
            arrivals=count,
            allocation_ratio_end=0.0,
            decisions_per_s=count / elapsed,
            load=load,
        ),
        installed,
        arrives[-1],
    )


@dataclass(slots=True)
class _Measure:
    """Measurements after the warm-up: time integral of the allocation, and counters of arrivals, moves and losses.

    Attributes:
        used_milli: device compute in use now.
        area: integral of ``used_milli`` over time, from the end of the warm-up to the time ``last``.
        asked_milli, lost_milli: device compute of all arrived requests, and of the rejected ones.
        moves: number of requests that defragmentation moved. killed: number of requests that failures ended.
    """

    tally: Tally
    used_milli: int = 0
    area: float = 0.0
    last: float = WARM_LIFETIMES
    asked_milli: int = 0
    lost_milli: int = 0
    arrivals: int = 0
    moves: int = 0
    killed: int = 0

    def node_changed(self, at: float, ended: list[Shape]) -> None:
        """Record the failure or recovery of a node, with the shapes of the pods that it ended."""
        self.advance(at)
        self.used_milli -= sum(shape.gpu_total_milli for shape in ended)
        self.killed += len(ended) if at > WARM_LIFETIMES else 0

    def advance(self, now: float) -> None:
        """Advance the time to ``now``; ``used_milli`` was in use since the last event."""
        if now > self.last:
            self.area += self.used_milli * (now - self.last)
            self.last = now

    def arrival(self, shape: Shape, now: float, *, admitted: bool, moved: int) -> None:
        """Record the arrival of a request. An arrival in the warm-up is ignored.

        Args:
            moved: number of requests that were moved to make room for it.
        """
        if now <= WARM_LIFETIMES:
            return
        self.arrivals += 1
        self.asked_milli += shape.gpu_total_milli
        self.lost_milli += 0 if admitted else shape.gpu_total_milli
        self.moves += moved
        self.tally.count(shape, admitted=admitted)

    def result(self, empty: RunResult, installed: int, until: float) -> RunResult:
        """Return a copy of the result ``empty`` with the measured fields set.

        Args:
            installed: device compute of the cluster in milli.
            until: time of the last arrival.
        """
        return replace(
            empty,
            arrivals=self.arrivals,
            allocation_ratio_end=self.area / installed / max(until - WARM_LIFETIMES, 1e-9),
            rejected_milli_ratio=self.lost_milli / self.asked_milli if self.asked_milli else 0.0,
            killed_per_100_arrivals=100.0 * self.killed / self.arrivals if self.arrivals else 0.0,
            moves_per_100_arrivals=100.0 * self.moves / self.arrivals if self.arrivals else 0.0,
            **self.tally.ratios(),
        )
